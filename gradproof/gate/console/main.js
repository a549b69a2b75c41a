// The console: signing in, the pages, the keys, and the state of the connection.

import { takeFromAddress, whoAmI, signIn } from "./sign_in.js";
import { el, button, fill, key } from "./dom.js";
import { said, plain } from "./visible.js";
import { events, get, token } from "./api.js";
import { follow, news, retry } from "./follow.js";
import { dialog, toast, failed } from "./notices.js";
import { Questions } from "./questions.js";
import { Decisions } from "./decisions.js";
import { Corrections } from "./corrections.js";
import { Editor } from "./editor.js";
import { Trends } from "./trends.js";
import { Versions } from "./versions.js";
import { Status, warnings } from "./status.js";

const PAGES = { decisions: "Decisions", corrections: "Corrections", policy: "Policy", rules: "Rules", trends: "Trends", versions: "Versions", status: "Status" };
const STATUS_EVERY = 60_000;
const KEYS = [
  ["j, k", "next, previous question or decision"],
  ["a", "allow the question once"],
  ["A", "allow always: choose how far it reaches"],
  ["b", "block the question"],
  ["B", "block always"],
  ["Enter", "open or close a decision"],
  ["c", "correct the decision"],
  ["/", "filter"],
  ["p", "pause or resume"],
  ["1 – 7", "the pages"],
  ["?", "this help"],
  ["Esc", "close, or leave a field"],
];

const app = document.getElementById("app");
let session = null;

class Session {
  constructor(me) {
    this.me = me;
    this.ended = new AbortController();
    this.questions = new Questions({ onselect: (id) => this.open(id), oncount: (n) => this.counted(n) });
    this.decisions = new Decisions();
    this.pages = {
      decisions: { element: el("div", {}, this.questions.element, this.decisions.element), show: () => {} },
      corrections: new Corrections({ onselect: (id) => { location.hash = `decisions/${id}`; } }),
      policy: new Editor("policy", me.may),
      rules: new Editor("rules", me.may),
      trends: new Trends(),
      versions: new Versions(me.may),
      status: new Status(me.may, (status) => this.told(status)),
    };
    this.frame();
    this.listen();
  }

  frame() {
    this.links = Object.fromEntries(Object.entries(PAGES).map(([name, label]) => [name, el("a", { href: `#${name}` }, label)]));
    this.badge = el("span", { class: "badge", hidden: true });
    this.links.decisions.append(this.badge);
    this.connection = el("span", { class: "connection" }, "Connecting…");
    this.store = el("span", { class: "store" });
    this.banner = el("div", { class: "banners" });
    this.lost = el("div", { class: "lost", role: "alert", hidden: true });
    this.main = el("main", { id: "main", tabIndex: -1 });
    fill(app,
      el("header", { class: "top" },
        el("div", { class: "masthead" },
          el("img", { src: "/console/icon.svg", alt: "", width: 26, height: 26 }),
          el("h1", {}, "Gradproof gate"), this.store,
          el("span", { class: "who" }, this.connection, el("span", { class: "me" }, said(this.me.name), ` · ${this.me.role}`), button("Keys", help, { class: "link", "aria-keyshortcuts": "?" }), button("Sign out", () => leave(), { class: "link" }))),
        el("nav", { "aria-label": "Pages" }, Object.values(this.links))),
      this.lost, this.banner, this.main);
  }

  listen() {
    const { signal } = this.ended;
    const on = (target, name, heard) => target.addEventListener(name, heard, { signal });
    on(window, "hashchange", () => this.route());
    on(document, "keydown", (event) => this.key(event));
    on(news, "found", () => this.found());
    on(news, "lost", ({ detail }) => this.gone(detail));
    on(news, "serving", () => this.status());
    on(news, "files", () => this.status());
    this.every = setInterval(() => this.status(), STATUS_EVERY);
  }

  start() {
    this.route();
    this.status();
    this.questions.refresh();
    this.decisions.reload();
    follow(this.ended.signal);
  }

  end() {
    this.ended.abort();
    this.questions.stop();
    clearInterval(this.every);
    clearInterval(this.again);
  }

  // the pages

  /** `#policy`, `#decisions/ID`, `#asks/ID`. */
  route() {
    if (takeFromAddress()) { begin(); return; }
    const [name, id] = location.hash.slice(1).split("/").map(decodeURIComponent);
    const page = name === "asks" ? "decisions" : name in PAGES ? name : "decisions";
    for (const [one, link] of Object.entries(this.links)) link.toggleAttribute("data-current", one === page) || link.removeAttribute("aria-current");
    this.links[page].setAttribute("aria-current", "page");
    if (this.page !== page) fill(this.main, this.pages[page].element);
    this.page = page;
    this.pages[page].show();
    this.entitle();
    if (name === "asks" && id) this.questions.point(id);
    else if (id) this.open(id);
  }

  async open(id) {
    if (this.page !== "decisions") { location.hash = `decisions/${id}`; return; }
    await this.decisions.open(id);
  }

  counted(n) {
    this.waiting = n;
    this.badge.hidden = !n;
    this.badge.textContent = String(n);
    this.badge.setAttribute("aria-label", `${n} waiting`);
    this.entitle();
  }

  entitle() {
    document.title = `${this.waiting ? `(${this.waiting}) ` : ""}${PAGES[this.page] ?? ""} · Gradproof gate`;
  }

  // the state of the gate and of the connection

  async status() {
    try {
      this.told(await get("/v1/status"));
    } catch { /* the connection's own message says so */ }
  }

  told(status) {
    fill(this.store, said(status.store ?? ""));
    fill(this.banner, warnings(status).map(([kind, text]) => el("p", { class: `banner ${kind}` }, text)));
  }

  found() {
    clearInterval(this.again);
    if (!this.lost.hidden) toast("Connected again.");
    this.lost.hidden = true;
    this.connection.textContent = "Live";
    this.connection.className = "connection live";
  }

  gone({ message, seconds }) {
    clearInterval(this.again);
    this.connection.textContent = "Not connected";
    this.connection.className = "connection off";
    const left = el("span", {});
    let rest = Math.ceil(seconds);
    const tell = () => { left.textContent = rest > 0 ? ` Trying again in ${rest} s. ` : " Trying again… "; rest -= 1; };
    tell();
    this.again = setInterval(tell, 1000);
    fill(this.lost, el("strong", {}, "Connection lost. "), message, el("span", { "aria-hidden": "true" }, left), " What is shown may be out of date. ", button("Try now", retry));
    this.lost.hidden = false;
  }

  // keys

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.repeat || document.querySelector("dialog[open]")) return;
    const field = event.target.closest?.("input, textarea, select");
    if (field) { if (event.key === "Escape") field.blur(); return; }
    if (this.pressed(event.key)) event.preventDefault();
  }

  pressed(name) {
    if (name === "?") return help(), true;
    const number = Number(name);
    if (number >= 1 && number <= Object.keys(PAGES).length) { location.hash = Object.keys(PAGES)[number - 1]; return true; }
    if (this.page !== "decisions") return false;
    if (name === "j" || name === "k") return this.move(name === "j" ? 1 : -1), true;
    if (name === "/") return this.decisions.focusFilter(), true;
    if (name === "p") return this.decisions.pause(!this.decisions.paused), true;
    if (name === "c" && this.decisions.current()) return this.decisions.current().correct(), true;
    return this.questions.key(name);
  }

  /** The next or previous question or decision. */
  move(step) {
    const rows = [...this.main.querySelectorAll("[data-row]")].filter((row) => row.checkVisibility());
    const now = document.activeElement.closest?.("[data-row]") ?? document.activeElement.closest?.(".decision")?.querySelector("[data-row]");
    const at = rows.indexOf(now);
    const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
    this.questions.mark();
  }
}

function help() {
  const box = dialog("Keys");
  fill(box.body, el("dl", { class: "keys" }, KEYS.map(([name, what]) => [el("dt", {}, name.split(/(, | – )/).map((part) => (/^(, | – )$/.test(part) ? part : key(part)))), el("dd", {}, what)])),
    el("p", { class: "note" }, "a, A, b and B answer the marked question. A question takes a key once it has been marked for a moment, so that a second press is not taken for the next one."));
}

function leave(message = "") {
  token.forget();
  session?.end();
  session = null;
  document.querySelectorAll("dialog").forEach((box) => box.close());
  document.title = "Gradproof gate";
  fill(app, signIn(enter, message));
  app.querySelector("input").focus();
}

function enter(me) {
  session?.end();
  session = new Session(me);
  session.start();
}

async function begin() {
  session?.end();
  session = null;
  try {
    const me = await whoAmI();
    if (me) enter(me);
    else leave();
  } catch (error) {
    if (error.status === 401) leave("This token is not known, or was revoked.");
    else if (error.status === undefined || error.status === 403) leave(plain(error.message));
    else fill(app, el("main", { id: "main", class: "sign-in-page" }, failed(error, begin)));
  }
}

events.addEventListener("signed-out", () => session && leave("This token is no longer valid."));
window.addEventListener("hashchange", () => !session && takeFromAddress() && begin());
takeFromAddress();
begin();
