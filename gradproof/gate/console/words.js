// What an act does, figures and times, in words.

import { el } from "./dom.js";
import { said, nodes } from "./visible.js";

// As `gate/standing.py` says them; a test compares.
export const WORDS = {
  "read": "reads",
  "write": "writes",
  "delete": "deletes",
  "execute": "runs",
  "install": "installs",
  "fetch_and_run": "runs what it fetches from",
  "send": "sends data to",
  "publish": "publishes to",
  "rewrite_history": "discards work in",
  "change_rights": "changes the rights of",
  "escalate": "gains rights through",
  "persist": "makes run again later:",
  "stop": "stops",
  "spend": "spends money:",
  "unknown": "could not be read:"
};
export const PLACES = {
  "own": "",
  "secret": "a secret",
  "root": "everything there",
  "device": "a device",
  "system": "part of the system",
  "temp": "temporary",
  "project": "in the project",
  "home": "in the home folder",
  "outside": "outside the project",
  "local": "on this machine",
  "remote": "on another machine",
  "unknown": "nobody knows where"
};
export const EFFECTS = Object.keys(WORDS);

export const OUTCOMES = { allow: "Allow", ask: "Ask", block: "Block" };
export const PARTS = { floor: "Floor", rule: "Rule", correction: "Correction", policy: "Policy", model: "Model" };

/** An act in words, as nodes: `deletes /home/ann/shared/, outside the project`. */
export function actWords(act) {
  if (act.effect === "unknown") return [said(act.program), ` ${WORDS.unknown} `, said(act.why ?? "")];
  const target = act.target || `${act.program ?? ""} ${act.verb ?? ""}`.trim();
  const place = PLACES[act.scope];
  const how = (act.via ?? []).includes("privileged") ? ", with elevated privileges" : "";
  return [`${WORDS[act.effect] ?? act.effect} `, said(target, { class: "target" }), `${place ? `, ${place}` : ""}${how}`];
}

/** allow, ask or block: never by colour alone. */
export function pill(outcome) {
  const known = outcome in OUTCOMES;
  return el("span", { class: `pill ${known ? outcome : ""}` }, known ? OUTCOMES[outcome] : String(outcome));
}

export const count = (n, one, many = `${one}s`) => `${Number(n).toLocaleString("en")} ${n === 1 ? one : many}`;
export const share = (p, digits = 1) => (Number.isFinite(p) ? `${(100 * p).toFixed(digits)}%` : "none yet");
export const figure = (x, digits = 2) => (Number.isFinite(x) ? x.toFixed(digits) : "–");

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });

/** A time: of today by the clock alone. Takes ISO texts, and seconds since 1970. */
export function when(value) {
  const date = new Date(typeof value === "number" ? value * 1000 : value);
  if (Number.isNaN(date.getTime())) return el("span", {}, nodes(String(value)));
  const today = date.toDateString() === new Date().toDateString();
  const shown = today ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
  return el("time", { datetime: date.toISOString(), title: WHOLE.format(date) }, shown);
}

/** Seconds as `4:05`, or `2 h 04 min`. */
export function span(seconds) {
  const left = Math.max(0, Math.ceil(seconds));
  if (left >= 3600) return `${Math.floor(left / 3600)} h ${String(Math.floor((left % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
}

/** The tool and the first line of its arguments, from the text of a call. */
export function callLine(text) {
  const [tool, ...rest] = String(text ?? "").split("\n");
  const line = rest.join(" ").replace(/^(command|file_path|path|url|sql|query): /, "");
  return el("span", { class: "call-line" }, said(tool.slice(0, 80), { class: "tool" }), " ", said(line.slice(0, 400), { class: "line" }));
}

/** Where a decision came from. */
export function origin(decision) {
  const parts = [];
  if (decision.actor) parts.push(el("span", {}, "by ", said(decision.actor)));
  if (decision.session) parts.push(el("span", {}, "session ", said(decision.session)));
  return parts;
}
