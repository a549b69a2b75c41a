// One decision: a line of the list, and what is behind it.

import { el, svg, button, key, fill } from "./dom.js";
import { said, block, nodes, plain } from "./visible.js";
import { pill, when, callLine, actWords, origin, figure, count, PARTS } from "./words.js";
import { get } from "./api.js";
import { failed } from "./notices.js";
import { correct } from "./correct.js";

const KINDS = {
  false_block: "corrected: should have been allowed",
  false_allow: "corrected: should have been blocked",
  override_allow: "allowed by a person",
  override_block: "blocked by a person",
  allow: "confirmed",
  block: "confirmed",
};
const BARS = 8; // features and words that are shown

export class DecisionRow {
  constructor(decision, { onchanged }) {
    this.onchanged = onchanged;
    this.head = el("button", { type: "button", class: "row-head", "aria-expanded": "false", "data-row": "", "data-decision": decision.id, onclick: () => this.toggle() });
    this.detail = el("div", { class: "detail", hidden: true });
    this.element = el("li", { class: "decision" }, this.head, this.detail);
    this.show(decision);
  }

  show(decision) {
    const text = JSON.stringify(decision);
    if (text === this.text) return;
    this.text = text;
    this.decision = decision;
    this.head.id = `decision-${decision.id}`;
    fill(this.head,
      pill(decision.decision),
      el("span", { class: "row-text" },
        el("span", { class: "reason" }, headline(decision)),
        callLine(decision.text),
        el("span", { class: "meta" }, this.meta(decision))),
      el("span", { class: "row-side" }, when(decision.time), probability(decision.probability)));
    if (!this.detail.hidden) this.fetch();
  }

  meta(decision) {
    const because = decision.because || PARTS[decision.by] || decision.by;
    return [
      said(because, { class: "because" }),
      decision.by === "rule" ? said(decision.reason) : null,
      origin(decision),
      decision.shadow ? el("span", {}, `shadow mode: ${decision.would_block ? "would have been blocked" : "the call was allowed"}`) : null,
      decision.ran ? el("span", {}, "ran") : null,
      decision.said ? el("span", { class: "remark" }, remark(decision.said)) : null,
    ];
  }

  toggle(open = this.detail.hidden) {
    this.detail.hidden = !open;
    this.head.setAttribute("aria-expanded", String(open));
    this.element.classList.toggle("open", open);
    if (open) this.fetch();
  }

  async fetch() {
    if (!this.detail.hasChildNodes()) this.describe(this.decision, null);
    try {
      const whole = await get(`/v1/decisions/${encodeURIComponent(this.decision.id)}`, { explain: true });
      this.describe({ ...this.decision, ...whole }, whole.explanation ?? null);
    } catch (error) {
      const box = this.detail.querySelector(".explanation");
      fill(box, failed(error, () => this.fetch()));
    }
  }

  describe(decision, explanation) {
    const many = (decision.acts ?? []).length > 1;
    fill(this.detail,
      block(decision.text),
      acts(decision),
      el("div", { class: "explanation", "aria-busy": String(!explanation) }, explanation ? explained(decision, explanation) : el("p", { class: "note" }, "Loading the explanation…")),
      el("p", { class: "meta" }, `Decision `, said(decision.id), ` by version ${decision.version}`, many ? `, ${count(decision.acts.length, "act")}` : ""),
      el("div", { class: "answers" }, button(["Correct…", key("c")], () => this.correct(), { class: "primary", "aria-keyshortcuts": "c" })));
  }

  correct() {
    correct(this.decision, { onsaved: this.onchanged });
  }
}

/** What the call does. The reason says so, except where a rule or a correction decided: then it names that. */
function headline(decision) {
  const act = decision.acts?.[decision.worst ?? 0];
  return ["rule", "correction"].includes(decision.by) && act ? actWords(act) : said(decision.reason);
}

function probability(p) {
  if (!Number.isFinite(p)) return null;
  return el("span", { class: "probability", title: "Probability that the call should be allowed" },
    svg("svg", { viewBox: "0 0 40 6", "aria-hidden": "true", class: "meter" }, svg("rect", { width: 40, height: 6, rx: 3, class: "track" }), svg("rect", { width: Math.max(0, Math.min(1, p)) * 40, height: 6, rx: 3, class: "value" })),
    `p ${figure(p)}`);
}

function remark(word) {
  const who = word.actor ? [" by ", said(word.actor)] : [];
  const kept = word.correction ? ` (${plain(word.correction)})` : "";
  return [KINDS[word.kind] ?? plain(word.kind), ...who, kept];
}

/** What the call does, act by act; the one that decided is marked. */
function acts(decision) {
  const rows = (decision.acts ?? []).map((act, i) =>
    el("tr", { class: i === decision.worst ? "deciding" : "" },
      el("td", { "data-label": "Act" }, el("div", {}, actWords(act), i === decision.worst && decision.acts.length > 1 ? el("span", { class: "tag" }, "decides") : null)),
      el("td", { "data-label": "Effect" }, String(act.effect ?? "").replaceAll("_", " ")),
      el("td", { "data-label": "Scope" }, String(act.scope ?? "")),
      el("td", { "data-label": "Target" }, said(act.target || "–")),
      el("td", { "data-label": "Program" }, said([act.program, act.verb].filter(Boolean).join(" ") || "–"))));
  const heads = ["Act", "Effect", "Scope", "Target", "Program"].map((name) => el("th", {}, name));
  return el("table", { class: "acts" }, el("caption", { class: "hidden" }, "What the call does"), el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));
}

function explained(decision, explanation) {
  return [
    el("h3", {}, "What decided"),
    el("p", {}, el("strong", {}, `${PARTS[explanation.by] ?? explanation.by}. `), nodes(explanation.because || decision.because || "")),
    el("h3", {}, "What the model says"),
    el("p", {}, `p(allow) = ${figure(explanation.model)} for the act that decided. `, el("span", { class: "note" }, "What moves it most, as shares of the logit:")),
    bars(explanation.features ?? []),
  ];
}

/** The features that moved the model most: to the right for allow, to the left for block. */
function bars(features) {
  const shown = features.slice(0, BARS);
  if (!shown.length) return el("p", { class: "note" }, "No feature affected it.");
  const most = Math.max(...shown.map(({ share }) => Math.abs(share)), 1e-9);
  const row = ({ feature, word, share }) => {
    const width = (Math.abs(share) / most) * 50;
    const bar = svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true", class: "bar" },
      svg("rect", { x: share < 0 ? 50 - width : 50, y: 1, width, height: 6, class: share < 0 ? "against" : "for" }),
      svg("rect", { x: 49.8, y: 0, width: 0.4, height: 8, class: "axis" }));
    const name = feature ? said(feature) : el("span", {}, "the word ", said(word, { class: "word" }));
    return el("li", {}, el("span", { class: "feature" }, name), bar, el("span", { class: "share" }, `${share > 0 ? "+" : "−"}${figure(Math.abs(share))}`));
  };
  return [el("p", { class: "bar-ends", "aria-hidden": "true" }, el("span", {}, "← block"), el("span", {}, "allow →")), el("ul", { class: "bars" }, shown.map(row))];
}
