// What changes at the gate, live: one request waits until something has changed. A lost connection is told, and tried
// again after 1, 2, 4 … 15 seconds, or at once when the page is looked at or the network is back.

import { get } from "./api.js";

const WAIT = 25; // seconds that a request waits for news
const BREATH = 300; // milliseconds between requests: under load, many decisions are one piece of news
const LONGEST = 15;
const KINDS = ["decisions", "asks", "corrections", "serving", "files"]; // beside lost and found
const news = new EventTarget();
let session = new AbortController();

/** Begins a session: who listened in the one before hears nothing any more. */
export function beginSession() {
  session.abort();
  session = new AbortController();
  return session;
}

/** Listens to a kind of news until the session ends. */
export const on = (kind, heard) => news.addEventListener(kind, heard, { signal: session.signal });

/** Follows until `signal` is aborted. */
export async function follow(signal) {
  let known = null;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const query = known ? { stamp: known.stamp, wait: WAIT } : { wait: 0 };
      const now = await get("/v1/changes", query, { seconds: WAIT + 15, signal });
      // After a loss anything may have changed in the meantime, also what was changed back.
      const changed = failures ? KINDS : known ? KINDS.filter((kind) => now[kind] !== known[kind]) : [];
      if (failures || !known) tell("found");
      failures = 0;
      known = now;
      changed.forEach((kind) => tell(kind));
      await pause(BREATH, signal);
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      const seconds = Math.max(error.retryAfter ?? 0, Math.min(LONGEST, 2 ** failures));
      failures += 1;
      tell("lost", { message: error.message, seconds });
      await pause(seconds * 1000, signal, true);
    }
  }
}

/** Tries a lost connection again now. */
export const retry = () => news.dispatchEvent(new CustomEvent("retry"));

function tell(kind, detail = {}) {
  news.dispatchEvent(new CustomEvent(kind, { detail }));
}

function pause(milliseconds, signal, hurried = false) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, milliseconds);
    const looked = () => document.visibilityState === "visible" && done();
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      news.removeEventListener("retry", done);
      window.removeEventListener("online", done);
      document.removeEventListener("visibilitychange", looked);
      resolve();
    }
    signal.addEventListener("abort", done);
    if (!hurried) return;
    news.addEventListener("retry", done);
    window.addEventListener("online", done);
    document.addEventListener("visibilitychange", looked);
  });
}
