// The list of decisions: live, newest first, with filters, pages and a pause.

import { el, button, field, select, fill } from "./dom.js";
import { EFFECTS, OUTCOMES, PARTS, count } from "./words.js";
import { get } from "./api.js";
import { on } from "./follow.js";
import { empty, failed, toast } from "./notices.js";
import { DecisionRow } from "./decision.js";

const PAGE = 50;
const MOST = 500; // rows that stay in the page while it follows
const ANY = ["", "Any"];
const SINCE = [["", "Any time"], ["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["30d", "Last 30 days"]];

export class Decisions {
  constructor() {
    this.rows = new Map(); // by id, newest first in the page
    this.paused = false;
    this.missed = false;
    this.turn = 0;
    this.filters = this.form();
    this.pauseButton = button("Pause", () => this.pause(!this.paused), { "aria-pressed": "false", "aria-keyshortcuts": "p" });
    this.state = el("p", { class: "note", role: "status" });
    this.list = el("ol", { class: "decisions", "aria-label": "Decisions, newest first" });
    this.older = button("Show older decisions", () => this.page(), { class: "older", hidden: true });
    this.message = el("div", {});
    this.element = el("section", { "aria-labelledby": "decisions-title" },
      el("div", { class: "title" }, el("h2", { id: "decisions-title", tabIndex: -1 }, "Decisions"), this.state, this.pauseButton),
      this.filters, this.message, this.list, this.older);
    on("decisions", () => this.newer());
    // A correction changes what is said of decisions that are shown already.
    on("corrections", () => this.again());
    on("asks", () => this.again());
  }

  form() {
    const changed = () => this.reload();
    let timer = 0;
    const typed = () => { clearTimeout(timer); timer = setTimeout(changed, 300); };
    const text = (placeholder) => el("input", { type: "search", placeholder, spellcheck: false, autocomplete: "off", maxLength: 200, oninput: typed });
    this.controls = {
      tool: text("Bash, Write, mcp__…"),
      decision: select([ANY, ...Object.entries(OUTCOMES)], "", changed),
      by: select([ANY, ...Object.entries(PARTS)], "", changed),
      effect: select([ANY, ...EFFECTS.map((effect) => [effect, effect.replaceAll("_", " ")])], "", changed),
      actor: text("ann"),
      session: text("s7"),
      remarked: select([ANY, ["true", "Corrected"], ["false", "Not corrected"]], "", changed),
      since: select(SINCE, "", changed),
    };
    const labels = { tool: "Tool", decision: "Decision", by: "Decided by", effect: "Effect", actor: "Actor", session: "Session", remarked: "Corrections", since: "Time" };
    this.clear = button("Clear filters", () => { for (const control of Object.values(this.controls)) control.value = ""; this.reload(); }, { class: "link", hidden: true });
    const fields = el("div", { class: "fields" }, Object.entries(labels).map(([name, label]) => field(label, this.controls[name])), this.clear);
    const opener = el("summary", {}, "Filters");
    this.folder = el("details", { class: "filters", open: window.innerWidth > 700 }, opener, fields);
    return el("form", { role: "search", onsubmit: (event) => event.preventDefault() }, this.folder);
  }

  /** `/`: into the filters. */
  focusFilter() {
    this.folder.open = true;
    this.controls.tool.focus();
  }

  chosen() {
    return Object.fromEntries(Object.entries(this.controls).map(([name, control]) => [name, control.value.trim()]).filter(([, value]) => value));
  }

  fetch(more) {
    return get("/v1/decisions", { ...this.chosen(), limit: PAGE, ...more });
  }

  /** The newest page, by the filters as they are now. */
  async reload() {
    const turn = (this.turn += 1);
    this.clear.hidden = !Object.keys(this.chosen()).length;
    this.list.setAttribute("aria-busy", "true");
    if (!this.rows.size) fill(this.message, empty("Loading…"));
    try {
      const { decisions, next } = await this.fetch();
      if (turn !== this.turn) return;
      this.next = next;
      this.missed = false;
      this.replace(decisions);
    } catch (error) {
      if (turn === this.turn && error.status !== 401) { this.replace([]); fill(this.message, failed(error, () => this.reload())); }
    } finally {
      if (turn === this.turn) this.list.removeAttribute("aria-busy");
    }
  }

  replace(decisions) {
    const before = this.rows;
    this.rows = new Map(decisions.map((decision) => [decision.id, this.row(decision, before)]));
    const focused = document.activeElement?.id;
    fill(this.list, [...this.rows.values()].map((row) => row.element));
    if (focused?.startsWith("decision-")) document.getElementById(focused)?.focus();
    this.settle();
  }

  row(decision, known = this.rows) {
    const row = known.get(decision.id);
    if (!row) return new DecisionRow(decision, { onchanged: () => this.again() });
    row.show(decision);
    return row;
  }

  /** Decisions since the newest one that is shown. */
  async newer() {
    if (this.paused) { this.missed = true; this.settle(); return; }
    const newest = this.rows.keys().next().value;
    if (!newest) { this.reload(); return; }
    const turn = this.turn;
    try {
      const { decisions, next } = await this.fetch({ after: newest });
      if (turn !== this.turn || this.paused) return;
      if (next) { this.reload(); return; } // more than a page has come: begin anew
      const fresh = decisions.filter((decision) => !this.rows.has(decision.id));
      this.rows = new Map([...fresh.map((decision) => [decision.id, this.row(decision)]), ...this.rows]);
      this.list.prepend(...fresh.map((decision) => this.rows.get(decision.id).element));
      for (const decision of fresh) this.rows.get(decision.id).element.classList.add("fresh");
      this.trim();
      this.settle();
    } catch { /* the connection's own message says so */ }
  }

  /** Keeps the page small while it is left to itself: what is dropped comes back with `Show older decisions`. */
  trim() {
    const ids = [...this.rows.keys()];
    if (ids.length <= MOST || window.scrollY > 400) return;
    for (const id of ids.slice(MOST)) { this.rows.get(id).element.remove(); this.rows.delete(id); }
    this.next = ids[MOST - 1];
  }

  /** What is said of the decisions that are shown: read again, at most once in a while. */
  again() {
    clearTimeout(this.soon);
    this.soon = setTimeout(async () => {
      if (!this.rows.size) { if (!this.paused) this.reload(); return; }
      try {
        const limit = Math.min(MOST, Math.max(PAGE, this.rows.size));
        const { decisions } = await this.fetch({ limit });
        for (const decision of decisions) this.rows.get(decision.id)?.show(decision);
      } catch { /* the connection's own message says so */ }
    }, 150);
  }

  async page() {
    this.older.disabled = true;
    try {
      const { decisions, next } = await this.fetch({ before: this.next });
      this.next = next;
      const added = decisions.filter((decision) => !this.rows.has(decision.id));
      for (const decision of added) this.rows.set(decision.id, this.row(decision));
      this.list.append(...added.map((decision) => this.rows.get(decision.id).element));
      if (added.length) this.rows.get(added[0].id).head.focus();
      this.settle();
    } catch (error) {
      toast(error.message, { bad: true });
    } finally {
      this.older.disabled = false;
    }
  }

  pause(on) {
    this.paused = on;
    this.pauseButton.textContent = on ? "Resume" : "Pause";
    this.pauseButton.setAttribute("aria-pressed", String(on));
    if (!on) this.newer();
    this.missed = false;
    this.settle();
  }

  settle() {
    this.older.hidden = !this.next;
    const filtered = Object.keys(this.chosen()).length > 0;
    this.state.textContent = this.paused
      ? (this.missed ? "Paused: there are newer decisions" : "Paused")
      : this.rows.size ? `Showing ${count(this.rows.size, "decision")}` : "";
    this.state.classList.toggle("missed", this.paused && this.missed);
    if (this.rows.size) fill(this.message);
    else fill(this.message, filtered ? empty("No decision matches these filters.") : empty("No call has been decided yet. The first one appears here as soon as an agent asks."));
  }

  /** Opens a decision, fetching it where it is not in the page. */
  async open(id) {
    let row = this.rows.get(id);
    if (!row) {
      try {
        const decision = await get(`/v1/decisions/${encodeURIComponent(id)}`);
        row = this.row(decision);
        fill(this.message, el("p", { class: "note" }, "The decision of the link:"), el("ol", { class: "decisions" }, row.element));
      } catch (error) {
        toast(error.message, { bad: true });
        return;
      }
    }
    row.toggle(true);
    row.head.focus();
    row.element.scrollIntoView({ block: "nearest" });
  }

  /** The row that has the focus. */
  current() {
    const id = document.activeElement?.dataset?.decision ?? document.activeElement?.closest?.(".decision")?.querySelector(".row-head").dataset.decision;
    return id ? this.rows.get(id) : undefined;
  }
}
