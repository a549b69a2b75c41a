// Elements from data. Text only ever becomes text nodes, and no attribute that runs or loads anything is ever set from
// a call: whatever an agent writes into an argument stays a text.

const ATTRIBUTE = /^(aria-|data-|role$|for$|list$|colspan$|datetime$)/;

/** `el("p", { class: "note", onclick }, "text", child)`; null and false children are left out. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (ATTRIBUTE.test(name)) made.setAttribute(name, value);
    else made[name] = value;
  }
  return fill(made, ...children);
}

/** The same for SVG, whose attributes are all numbers, classes and texts of ours. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return fill(made, ...children);
}

/** Replaces what is in an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return parent;
}

export function button(label, onclick, props = {}) {
  return el("button", { type: "button", onclick, ...props }, label);
}

/** A key, as it is shown beside what it does. */
export const key = (name) => el("kbd", { "aria-hidden": "true" }, name);

/** `["Decision", select]` with its label above it. */
export function field(label, control, note) {
  control.id ||= `field-${(field.count = (field.count ?? 0) + 1)}`;
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control, note ? el("small", {}, note) : null);
}

/** A select; options are `[value, label]`. */
export function select(options, value, onchange, props = {}) {
  const made = el("select", { onchange, ...props }, options.map(([v, label]) => el("option", { value: v }, label)));
  made.value = value;
  return made;
}
