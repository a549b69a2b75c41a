// Waiting questions: on top, with one-key answers and the time that is left.

import { el, button, key, fill } from "./dom.js";
import { said, block, plain } from "./visible.js";
import { origin, span, count } from "./words.js";
import { get, post, gateTime } from "./api.js";
import { news } from "./follow.js";
import { toast, failed, busy } from "./notices.js";
import { correct } from "./correct.js";

// A question takes a key only after it has been in view for so long: a second press is not meant for the next one.
const SETTLES = 600;
const FEW = 4; // questions that are shown at once, as page.css says; the others follow on demand
const ENDING = 60; // seconds, from which on the time left is shown as urgent
const ANSWERED = { allowed: "was allowed", blocked: "was blocked", expired: "has expired" };

const times = (ask) => (ask.times > 1 ? `asked ${ask.times} times` : "");

export class Questions {
  constructor({ onselect, oncount }) {
    Object.assign(this, { onselect, oncount });
    this.cards = new Map(); // by id: { element, ask, since }
    this.heading = el("h2", { id: "questions-title" }, "Waiting questions");
    this.list = el("div", { class: "questions" });
    this.more = button("", () => { this.list.classList.add("all"); this.settle(); }, { class: "link", hidden: true });
    this.element = el("section", { class: "questions-part", "aria-labelledby": "questions-title" }, this.heading, this.list, this.more);
    this.timer = setInterval(() => this.tick(), 1000);
    news.addEventListener("asks", () => this.refresh());
    this.element.addEventListener("focusin", () => this.mark());
  }

  stop() {
    clearInterval(this.timer);
  }

  async refresh() {
    try {
      const { asks } = await get("/v1/asks", { state: "waiting", limit: 200 });
      this.show(asks);
    } catch (error) {
      if (!this.cards.size && error.status !== 401) fill(this.list, failed(error, () => this.refresh()));
    }
  }

  /** Oldest first, so that a new question never takes the place of the one that is being read. */
  show(asks) {
    const waiting = [...asks].sort((a, b) => a.expires - b.expires || (a.id < b.id ? -1 : 1));
    const kept = new Set(waiting.map((ask) => ask.id));
    const gone = [...this.cards.values()].filter((card) => !kept.has(card.ask.id));
    const added = waiting.filter((ask) => !this.cards.has(ask.id));
    for (const ask of [...added]) {
      // Where an agent repeats its call, the newer question stands for both, and takes the place of the older.
      const same = gone.findIndex((card) => card.ask.actor === ask.actor && card.ask.decision.text === ask.decision.text);
      if (same < 0) continue;
      this.renew(gone.splice(same, 1)[0], ask);
      added.splice(added.indexOf(ask), 1);
    }
    gone.forEach((card) => this.drop(card));
    if (!this.cards.size) fill(this.list);
    for (const ask of added) {
      const card = { ask, since: performance.now() };
      card.element = this.card(card);
      this.cards.set(ask.id, card);
      this.list.append(card.element);
    }
    this.settle();
  }

  settle() {
    const n = this.cards.size;
    this.heading.textContent = n ? `${count(n, "question")} waiting` : "No question is waiting";
    this.heading.classList.toggle("quiet", !n);
    if (n <= FEW) this.list.classList.remove("all");
    this.more.hidden = n <= FEW || this.list.classList.contains("all");
    this.more.textContent = `Show ${count(n - FEW, "more question")}`;
    this.oncount(n);
    this.tick();
    this.mark();
  }

  renew(card, ask) {
    this.cards.delete(card.ask.id);
    card.ask = ask;
    card.element.dataset.id = ask.id;
    card.element.querySelector(".times").textContent = times(ask);
    this.cards.set(ask.id, card);
  }

  card(card) {
    const { ask } = card;
    const { decision } = ask;
    const left = el("span", { class: "left", role: "timer" });
    return el("article", { class: "question", tabIndex: -1, "data-row": "", "data-id": ask.id, "aria-label": `Question: ${plain(decision.reason)}` },
      el("header", {}, el("p", { class: "reason" }, said(decision.reason)), left),
      block(decision.text, 400, 8),
      el("div", { class: "answers" },
        button(["Allow once", key("a")], () => this.answer(card, "allow"), { class: "allow", "aria-keyshortcuts": "a" }),
        button(["Allow always…", key("A")], () => this.always(card, true), { "aria-keyshortcuts": "Shift+A" }),
        button(["Block", key("b")], () => this.answer(card, "block"), { class: "block", "aria-keyshortcuts": "b" }),
        button(["Block always…", key("B")], () => this.always(card, false), { "aria-keyshortcuts": "Shift+B" }),
        el("p", { class: "meta" }, said(decision.because ?? ""), origin({ ...decision, actor: ask.actor }), el("span", { class: "times" }, times(ask)))));
  }

  /** The card that keys speak to: the one with the focus, else the first. */
  current() {
    const row = document.activeElement?.closest?.("[data-row]");
    if (row) return this.cards.get(row.dataset.id); // none where a decision has the focus
    return this.cards.values().next().value;
  }

  mark() {
    const current = this.current();
    for (const card of this.cards.values()) {
      const is = card === current;
      if (is && !card.element.classList.contains("current")) card.since = performance.now();
      card.element.classList.toggle("current", is);
    }
  }

  /** a, A, b, B; true where the key was meant for a question. */
  key(name) {
    const card = this.current();
    const meant = { a: () => this.answer(card, "allow"), b: () => this.answer(card, "block"), A: () => this.always(card, true), B: () => this.always(card, false) }[name];
    if (!meant || !card) return false;
    if (performance.now() - card.since >= SETTLES && this.seen(card.element)) meant();
    return true;
  }

  /** A question that is scrolled out of sight is brought into sight first, and takes no key. */
  seen(element) {
    const { top } = element.getBoundingClientRect();
    if (top >= -8 && top < window.innerHeight - 60) return true;
    element.focus();
    element.scrollIntoView({ block: "start" });
    return false;
  }

  always({ ask }, allow) {
    correct({ ...ask.decision, id: ask.id, decision: "ask" }, { allow, answers: true, onsaved: () => this.refresh() });
  }

  answer(card, answer) {
    if (card.sent) return;
    card.sent = true;
    const pressed = card.element.querySelector(`button.${answer}`);
    busy(pressed, async () => {
      try {
        await post(`/v1/asks/${encodeURIComponent(card.ask.id)}`, { answer, for: "once" });
        toast(`${answer === "allow" ? "Allowed once" : "Blocked"}: ${plain(card.ask.decision.reason)}`);
      } finally {
        card.sent = false;
        await this.refresh();
      }
    });
  }

  drop(card) {
    const next = card.element.nextElementSibling ?? card.element.previousElementSibling;
    const focused = card.element.contains(document.activeElement);
    this.cards.delete(card.ask.id);
    card.element.remove();
    if (focused) (next ?? this.heading).focus?.();
  }

  tick() {
    for (const card of this.cards.values()) {
      const { ask, element } = card;
      const left = element.querySelector(".left");
      const seconds = ask.expires - gateTime();
      left.textContent = seconds > 0 ? `expires in ${span(seconds)}` : "expired";
      left.classList.toggle("ending", seconds < ENDING);
      if (seconds > 0 || card.ended) continue;
      card.ended = true;
      for (const answer of element.querySelectorAll(".answers button")) answer.disabled = true;
      setTimeout(() => this.refresh(), 1500);
    }
  }

  /** What a link `#asks/ID` points to: the card, or what became of the question. */
  async point(id) {
    await this.refresh();
    const card = this.cards.get(id);
    if (card) { this.list.classList.add("all"); this.settle(); card.element.focus(); card.element.scrollIntoView({ block: "nearest" }); return; }
    try {
      const ask = await get(`/v1/asks/${encodeURIComponent(id)}`);
      toast(`This question ${ANSWERED[ask.state] ?? "no longer waits"}${ask.by ? ` by ${plain(ask.by)}` : ""}.`);
      this.onselect(id);
    } catch (error) {
      toast(error.message, { bad: true });
    }
  }
}

