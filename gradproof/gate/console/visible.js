// Text that an agent chose, made safe to read: what cannot be seen, or would change how its neighbours are seen, is
// shown by its number. A U+202E in a path must not reorder what the operator reads.

import { el, button } from "./dom.js";

// Controls, format characters (bidi overrides, zero-width ones, tags), private use, lone surrogates, separators; blanks
// that are not the ordinary one; letters that look like nothing; more than three combining marks on one letter.
const UNSEEN =
  /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]|[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u115f\u1160\u3164\uffa0\u2800]|[\u{e0100}-\u{e01ef}\ufe00-\ufe0e]|(?<=\p{M}{3})\p{M}/gu;
const LITTLE = 150; // characters that are not worth a button
const NAMES = {
  0x00: "null", 0x07: "bell", 0x08: "backspace", 0x09: "tab", 0x0a: "line feed", 0x0d: "carriage return", 0x1b: "escape",
  0x7f: "delete", 0xa0: "no-break space", 0xad: "soft hyphen", 0x061c: "Arabic letter mark", 0x200b: "zero-width space",
  0x200c: "zero-width non-joiner", 0x200d: "zero-width joiner", 0x200e: "left-to-right mark", 0x200f: "right-to-left mark",
  0x2028: "line separator", 0x2029: "paragraph separator", 0x202a: "left-to-right embedding",
  0x202b: "right-to-left embedding", 0x202c: "end of embedding", 0x202d: "left-to-right override",
  0x202e: "right-to-left override", 0x2060: "word joiner", 0x2066: "left-to-right isolate",
  0x2067: "right-to-left isolate", 0x2068: "first strong isolate", 0x2069: "end of isolate", 0xfeff: "byte order mark",
};

function number(letter) {
  return `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Nodes for a text; `lines` keeps line breaks and tabs as they are. */
export function nodes(text, lines = false) {
  const made = [];
  let from = 0;
  for (const match of String(text).matchAll(UNSEEN)) {
    const letter = match[0];
    if (lines && (letter === "\n" || letter === "\t")) continue;
    made.push(text.slice(from, match.index));
    const name = NAMES[letter.codePointAt(0)];
    made.push(el("span", { class: "unseen", title: name ? `${number(letter)}, ${name}` : number(letter) }, number(letter)));
    from = match.index + letter.length;
  }
  return [...made, String(text).slice(from)].filter((part) => part !== "");
}

/** The same as one text, for labels and titles. */
export function plain(text) {
  return String(text).replace(UNSEEN, (letter) => (letter === "\n" ? " " : `[${number(letter)}]`));
}

/** A text of an agent in one line. */
export function said(text, props = {}) {
  return el("span", { ...props, class: `said ${props.class ?? ""}`.trim(), translate: false }, nodes(String(text ?? "")));
}

/** A text cut at a whole character. */
export function cut(text, length) {
  const letters = Array.from(text.slice(0, length + 1));
  return text.length <= length ? text : letters.slice(0, length).join("");
}

/** A text of an agent in lines; what is long is cut, with a button that shows the rest. */
export function block(text, most = 600, lines = 12) {
  const whole = String(text ?? "");
  const start = cut(whole.split("\n").slice(0, lines).join("\n"), most);
  const head = whole.length - start.length < LITTLE ? whole : start;
  const box = el("pre", { class: "said call", translate: false, tabIndex: 0, "aria-label": "The call" });
  const show = (all) => box.replaceChildren(...nodes(all ? whole : head, true));
  show(false);
  if (head.length === whole.length) return el("div", {}, box);
  const rest = (whole.length - head.length).toLocaleString("en");
  const more = button(`Show ${rest} more characters`, () => {
    const open = more.getAttribute("aria-expanded") === "true";
    more.setAttribute("aria-expanded", String(!open));
    more.textContent = open ? `Show ${rest} more characters` : "Show less";
    show(!open);
  }, { class: "link", "aria-expanded": "false" });
  return el("div", {}, box, more);
}
