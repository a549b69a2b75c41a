// Alignment, trust and drift over time.

import { el, fill, select } from "./dom.js";
import { get } from "./api.js";
import { on } from "./follow.js";
import { load, empty } from "./notices.js";
import { share, count } from "./words.js";
import { Chart } from "./chart.js";

const PERIODS = [["1", "Last day"], ["7", "Last 7 days"], ["30", "Last 30 days"], ["90", "Last 90 days"]];
const BUCKETS = 48;
const percent = (value) => share(value, value > 0 && value < 0.095 ? 1 : 0);
// As in `gate/trust.py` and `gate/drift.py`; a test compares.
export const LIMITS = { judgements: 500, blocks: 50, agreed: 0.95, shifted: 0.25, risen: 8 };

export class Trends {
  constructor() {
    this.days = select(PERIODS, "30", () => this.show());
    this.days.setAttribute("aria-label", "Period");
    this.box = el("div", {});
    this.element = el("section", { "aria-labelledby": "trends-title" },
      el("div", { class: "title" }, el("h2", { id: "trends-title", tabIndex: -1 }, "Trends"), this.days), this.box);
    on("serving", () => this.element.isConnected && this.show());
  }

  show() {
    return load(this.box, () => get("/v1/history", { days: this.days.value }), ({ points }) => {
      fill(this.box, points.length ? [standing(points.at(-1)), el("div", { class: "charts" }, charts(points))] : empty("There is no history yet. One point is recorded per hour."));
    });
  }
}

/** Where things stand, in a sentence each. */
function standing({ trust, alignment, judged, errors, inputs }) {
  const short = [
    trust.judgements < LIMITS.judgements && `${trust.judgements} of ${LIMITS.judgements} judgements`,
    trust.blocks < LIMITS.blocks && `${trust.blocks} of ${LIMITS.blocks} to block`,
  ].filter(Boolean).join(", ");
  const told = trust.given ? "The model is trusted: it can allow a call instead of asking."
    : short ? `The model is not trusted yet: ${short}.`
    : `The model is not trusted: it agreed with ${share(trust.agreed)} of the last judgements and ${share(trust.blocks_agreed)} of those to block; ${share(LIMITS.agreed, 0)} are needed.`;
  return el("ul", { class: "standing" },
    el("li", {}, judged ? `Alignment is ${share(alignment)} of ${count(judged, "judgement")}.` : "Nothing has been judged yet."),
    el("li", {}, told),
    el("li", { class: errors.drift ? "warn" : "" }, errors.drift ? "The error rate is rising." : "The error rate is steady."),
    el("li", { class: inputs.drift ? "warn" : "" }, inputs.drift ? "Input distribution: shifted." : "Input distribution: stable."));
}

function charts(points) {
  const over = (value) => points.map((point) => [point.time, value(point)]);
  const rated = (value) => over((point) => (point.judged ? value(point) : null));
  const bars = buckets(points);
  return [
    new Chart({ title: "Alignment", note: "Share of people's judgements that agree with the gate.", format: percent, top: 1, series: [{ name: "alignment", kind: "a", points: rated(({ alignment }) => alignment) }] }),
    new Chart({ title: "Trust", note: "Agreement over the last 500 judgements, and over the last 50 to block.", format: percent, top: 1, limit: { value: LIMITS.agreed, name: "needed" },
      series: [{ name: "all", kind: "a", points: over(({ trust }) => (trust.judgements ? trust.agreed : null)) }, { name: "to block", kind: "b", points: over(({ trust }) => (trust.blocks ? trust.blocks_agreed : null)) }] }),
    new Chart({ title: "Judgements towards trust", note: "Since the last rollback.", format: (n) => Math.round(n).toLocaleString("en"), limit: { value: LIMITS.judgements, name: "needed" }, series: [{ name: "judgements", kind: "a", points: over(({ trust }) => trust.judgements) }, { name: "to block", kind: "b", points: over(({ trust }) => trust.blocks) }] }),
    new Chart({ title: "Error rate", note: "Share of judged decisions that were wrong.", format: percent, series: [{ name: "errors", kind: "b", points: rated(({ errors }) => errors.rate) }] }),
    new Chart({ title: "Input drift", note: "Stability index of the model's scores; above 0.25 the calls differ from those it was fitted on.", format: (x) => x.toFixed(2), limit: { value: LIMITS.shifted, name: "shifted" }, series: [{ name: "index", kind: "a", points: over(({ inputs }) => inputs.index) }] }),
    new Chart({ title: "Decisions", format: (n) => Math.round(n).toLocaleString("en"), bars: true, series: ["allow", "ask", "block"].map((kind) => ({ name: kind, kind, points: bars.map(([time, counts]) => [time, counts[kind]]) })) }),
  ].map(({ element }) => element);
}

/** Counts of decisions in equal stretches of time, named by their end. */
export function buckets(points) {
  const first = points[0].time;
  const last = points.at(-1).time;
  const width = Math.max(3600, (last - first) / BUCKETS);
  const ends = Array.from({ length: Math.max(1, Math.ceil((last - first) / width)) }, (_, i) => [first + (i + 1) * width, { allow: 0, ask: 0, block: 0 }]);
  for (const { time, decisions } of points) {
    const [, counts] = ends[Math.min(ends.length - 1, Math.max(0, Math.ceil((time - first) / width) - 1))];
    for (const kind of Object.keys(counts)) counts[kind] += decisions?.[kind] ?? 0;
  }
  return ends.map(([time, counts]) => [Math.min(time, Math.max(last, first + 1)), counts]);
}
