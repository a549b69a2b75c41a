// Reach: which decisions of the last days a change would have made otherwise, shown before the change can be saved.

import { el, button, fill } from "./dom.js";
import { said } from "./visible.js";
import { pill, when, callLine, count } from "./words.js";
import { failed } from "./notices.js";

const FEW = 5;
const PATIENCE = 350; // milliseconds after the last keystroke

/** A preview in words and as a list. */
export function reach(preview, days) {
  const { changed, decisions, looked_at: looked } = preview;
  const seen = el("p", { class: "note" }, `Compared with ${count(looked, "recorded decision")} of the last ${count(days, "day")}.`);
  if (!changed) {
    return [el("p", { class: "reach-sum none" }, looked ? "No recorded decision would have been different." : "No decision was recorded in this time, so the reach is unknown."), seen];
  }
  const list = el("ol", { class: "reach" }, decisions.slice(0, FEW).map(row));
  const more = decisions.length > FEW && button(`Show all ${decisions.length}`, () => { fill(list, decisions.map(row)); more.remove(); }, { class: "link" });
  const unlisted = changed - decisions.length;
  return [
    el("p", { class: "reach-sum" }, sentence(preview.summary)),
    list, more || null,
    unlisted > 0 ? el("p", { class: "note" }, `${count(unlisted, "more decision")} not listed.`) : null,
    seen,
  ];
}

function row(decision) {
  return el("li", {},
    el("div", { class: "reach-head" }, pill(decision.before), el("span", { "aria-label": "becomes" }, "→"), pill(decision.after), el("span", { class: "when" }, when(decision.time))),
    callLine(decision.text),
    decision.reason && decision.by !== "correction" ? el("p", { class: "note" }, said(decision.reason)) : null);
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** Keeps a box with the reach of what is chosen, and a button disabled until exactly that has been shown.
 * `asked()` gives the choice as JSON, or null where there is nothing to preview; `fetched(choice)` its preview. */
export class ReachBox {
  constructor({ asked, fetched, save, onerror, may = true }) {
    this.box = el("div", { class: "reach-box", "aria-live": "polite", "aria-label": "Reach" });
    Object.assign(this, { asked, fetched, save, onerror, may, shown: undefined, timer: 0, turn: 0 });
    save.disabled = true;
  }

  /** To be called whenever the choice may have changed. */
  update(patience = PATIENCE) {
    clearTimeout(this.timer);
    const choice = this.asked();
    this.settle(choice);
    if (choice === null) { this.turn += 1; fill(this.box); return; }
    if (JSON.stringify(choice) !== this.shown) this.timer = setTimeout(() => this.fetch(choice), patience);
  }

  async fetch(choice) {
    const turn = (this.turn += 1);
    const text = JSON.stringify(choice);
    this.box.setAttribute("aria-busy", "true");
    if (!this.box.hasChildNodes()) fill(this.box, el("p", { class: "note" }, "Working out the reach…"));
    try {
      const preview = await this.fetched(choice);
      if (turn !== this.turn) return;
      fill(this.box, reach(preview, choice.days));
      this.shown = text;
      this.onerror?.(null);
    } catch (error) {
      if (turn !== this.turn) return;
      this.shown = undefined;
      if (this.onerror?.(error)) fill(this.box);
      else fill(this.box, failed(error, () => this.fetch(choice)));
    } finally {
      if (turn === this.turn) this.box.removeAttribute("aria-busy");
      this.settle(this.asked());
    }
  }

  settle(choice) {
    this.ready = choice !== null && JSON.stringify(choice) === this.shown;
    this.save.disabled = !this.ready || !this.may;
  }
}
