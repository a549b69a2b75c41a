// A small chart over time as SVG: axes, lines or stacked bars, a limit; the value under the pointer, and a table of all.

import { el, svg, fill } from "./dom.js";

const HEIGHT = 190;
const EDGE = { left: 46, right: 12, top: 10, bottom: 26 };
const LEAST = 120; // below that nothing could be read: the page is just being laid out
const DAY = 86400;
const DATE = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const HOUR = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const BOTH = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });
const ROWS = 200; // of the table

/** `series`: `[{ name, kind, points: [[seconds, value or null]] }]`, all at the same times; `limit`: `{ value, name }`. */
export class Chart {
  constructor({ title, note, format, series, limit, top, bars = false }) {
    Object.assign(this, { title, note, format, series, limit, bars });
    this.times = series[0].points.map(([time]) => time);
    const values = series.flatMap(({ points }) => points.map(([, value]) => value)).filter(Number.isFinite);
    const sums = bars ? this.times.map((_, i) => series.reduce((sum, { points }) => sum + (points[i][1] ?? 0), 0)) : values;
    this.top = top ?? ceiling(Math.max(...sums, limit?.value ?? 0, 0));
    this.plot = svg("svg", { class: "plot", role: "img", "aria-label": this.summary() });
    this.readout = el("p", { class: "readout", "aria-hidden": "true" });
    this.element = el("figure", { class: "chart" },
      el("figcaption", {}, el("h3", {}, title), note ? el("p", { class: "note" }, note) : null, this.legend()),
      this.plot, this.readout, this.table());
    this.plot.addEventListener("pointermove", (event) => this.read(event));
    this.plot.addEventListener("pointerleave", () => this.read(null));
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.read(null);
  }

  legend() {
    const entry = (kind, name) => el("span", {}, el("i", { class: `swatch ${kind}` }), name);
    if (this.series.length === 1 && !this.limit) return null;
    return el("p", { class: "legend" }, this.series.map(({ name, kind }) => entry(kind, name)), this.limit ? entry("limit", this.limit.name) : null);
  }

  summary() {
    const told = this.series.map(({ name, points }) => {
      const last = points.findLast(([, value]) => Number.isFinite(value));
      return `${name} ${last ? `now ${this.format(last[1])}` : "has no values"}`;
    });
    return `${this.title}: ${told.join(", ")}`;
  }

  draw() {
    const width = Math.floor(this.plot.getBoundingClientRect().width);
    if (width < LEAST || width === this.width) return;
    this.width = width;
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.plot.setAttribute("height", HEIGHT);
    this.cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
    fill(this.plot, this.axes(), this.bars ? this.stack() : this.series.map((one) => this.line(one)), this.limitLine(), this.cursor);
  }

  x(time) {
    const [first, last] = this.extent();
    return EDGE.left + ((time - first) / (last - first)) * (this.width - EDGE.left - EDGE.right);
  }

  y(value) {
    return HEIGHT - EDGE.bottom - (Math.min(value, this.top) / this.top) * (HEIGHT - EDGE.top - EDGE.bottom);
  }

  /** A single point still has a width: an hour around it. */
  extent() {
    const first = this.times[0];
    const last = this.times.at(-1);
    return last - first < 3600 ? [last - 3600, last] : [first, last];
  }

  axes() {
    const made = [];
    for (const part of [0, 0.5, 1]) {
      const value = part * this.top;
      made.push(svg("line", { class: part ? "grid" : "axis", x1: EDGE.left, x2: this.width - EDGE.right, y1: this.y(value), y2: this.y(value) }),
        svg("text", { class: "tick", x: EDGE.left - 6, y: this.y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    for (const [time, label] of timeTicks(...this.extent(), Math.max(2, Math.floor(this.width / 110)))) {
      made.push(svg("line", { class: "axis", x1: this.x(time), x2: this.x(time), y1: HEIGHT - EDGE.bottom, y2: HEIGHT - EDGE.bottom + 4 }),
        svg("text", { class: "tick", x: Math.min(this.x(time), this.width - 24), y: HEIGHT - 7, "text-anchor": "middle" }, label));
    }
    return made;
  }

  /** A line that is broken where there is no value, and a dot where a value stands alone. */
  line({ points, kind }) {
    const pieces = [[]];
    for (const [time, value] of points) {
      if (Number.isFinite(value)) pieces.at(-1).push([this.x(time), this.y(value)]);
      else if (pieces.at(-1).length) pieces.push([]);
    }
    return pieces.filter((piece) => piece.length).map((piece) => piece.length === 1
      ? svg("circle", { class: `dot ${kind}`, cx: piece[0][0], cy: piece[0][1], r: 3 })
      : svg("path", { class: `line ${kind}`, d: piece.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") }));
  }

  stack() {
    const slot = (this.width - EDGE.left - EDGE.right) / Math.max(this.times.length, 8);
    return this.times.flatMap((time, i) => {
      let below = 0;
      return this.series.map(({ points, kind }) => {
        const value = points[i][1] ?? 0;
        const upper = this.y(below + value);
        const height = this.y(below) - upper;
        below += value;
        // A bar ends at its time: it counts what came before.
        return height > 0 ? svg("rect", { class: `bar ${kind}`, x: Math.max(EDGE.left, this.x(time) - slot * 0.9), y: upper, width: slot * 0.8, height }) : null;
      });
    });
  }

  limitLine() {
    if (!this.limit || this.limit.value > this.top) return null;
    const y = this.y(this.limit.value);
    return svg("line", { class: "limit", x1: EDGE.left, x2: this.width - EDGE.right, y1: y, y2: y });
  }

  /** The values nearest to the pointer; without one, the newest. */
  read(event) {
    let nearest = this.times.length - 1;
    if (event && this.width) {
      const at = event.clientX - this.plot.getBoundingClientRect().left;
      this.times.forEach((time, i) => { if (Math.abs(this.x(time) - at) < Math.abs(this.x(this.times[nearest]) - at)) nearest = i; });
    }
    if (this.cursor) {
      this.cursor.setAttribute("visibility", event ? "visible" : "hidden");
      this.cursor.setAttribute("x1", this.x(this.times[nearest]));
      this.cursor.setAttribute("x2", this.x(this.times[nearest]));
    }
    const told = this.series.map(({ name, points }) => `${name} ${shown(points[nearest][1], this.format)}`);
    this.readout.textContent = `${BOTH.format(new Date(this.times[nearest] * 1000))}: ${told.join(" · ")}`;
  }

  table() {
    const from = Math.max(0, this.times.length - ROWS);
    const table = el("table", {});
    const folder = el("details", { class: "values", ontoggle: () => {
      if (!folder.open || table.hasChildNodes()) return;
      fill(table,
        el("thead", {}, el("tr", {}, ["Time", ...this.series.map(({ name }) => name)].map((name) => el("th", {}, name)))),
        el("tbody", {}, this.times.slice(from).map((time, i) => el("tr", {}, el("td", {}, BOTH.format(new Date(time * 1000))), this.series.map(({ points }) => el("td", {}, shown(points[from + i][1], this.format))))).reverse()));
    } }, el("summary", {}, "Values"), el("div", { class: "scrolls", tabIndex: 0, role: "region", "aria-label": `Values: ${this.title}` }, table));
    return folder;
  }
}

const shown = (value, format) => (Number.isFinite(value) ? format(value) : "–");

/** The next of 1, 2, 5, 10, 20 … */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** Ticks at whole days, or at whole hours where the time is short. */
export function timeTicks(first, last, most) {
  const steps = [3600 / 4, 3600, 3 * 3600, 6 * 3600, 12 * 3600, DAY, 2 * DAY, 3 * DAY, 5 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY];
  const step = steps.find((one) => (last - first) / one <= most) ?? 365 * DAY;
  const zone = new Date(first * 1000).getTimezoneOffset() * 60;
  const start = Math.ceil((first - zone) / step) * step + zone;
  const ticks = [];
  for (let time = start; time <= last; time += step) {
    const date = new Date(time * 1000);
    ticks.push([time, step >= DAY || (date.getHours() === 0 && date.getMinutes() === 0) ? DATE.format(date) : HOUR.format(date)]);
  }
  return ticks;
}
