// Short messages, dialogs, and the three states of anything that is fetched: loading, failed, there.

import { el, button, fill } from "./dom.js";

const SHOWN = 8000; // milliseconds
const MOST = 3; // messages at once

/** A message at the bottom; `undo` is a label and what it does. */
export function toast(text, { bad = false, undo } = {}) {
  const box = el("div", { class: `toast ${bad ? "bad" : ""}` }, el("span", {}, text));
  if (undo) box.append(button(undo[0], () => { box.remove(); undo[1](); }, { class: "link" }));
  box.append(button("×", () => box.remove(), { class: "close", "aria-label": "Dismiss" }));
  const shown = document.getElementById("toasts");
  shown.append(box);
  while (shown.children.length > MOST) shown.firstChild.remove();
  setTimeout(() => box.remove(), bad ? 2 * SHOWN : SHOWN);
}

/** A modal dialog; `close` takes it away. The browser keeps the focus inside, and gives it back. */
export function dialog(title, { wide = false, onclose } = {}) {
  const body = el("div", { class: "dialog-body" });
  const id = `dialog-${(dialog.count = (dialog.count ?? 0) + 1)}`;
  const box = el("dialog", { class: wide ? "wide" : "", "aria-labelledby": id },
    el("header", {}, el("h2", { id }, title), button("×", () => box.close(), { class: "close", "aria-label": "Close" })), body);
  box.addEventListener("close", () => { box.remove(); onclose?.(); });
  box.addEventListener("click", (event) => event.target === box && box.close());
  document.body.append(box);
  box.showModal();
  return { box, body, close: () => box.close() };
}

/** Runs `work` while a button is disabled; what goes wrong is a message. */
export async function busy(pressed, work) {
  pressed.disabled = true;
  pressed.setAttribute("aria-busy", "true");
  try {
    return await work();
  } catch (error) {
    toast(error.message, { bad: true });
  } finally {
    pressed.disabled = false;
    pressed.removeAttribute("aria-busy");
  }
}

/** Fetches and shows. The first time it says that it loads; later the old stays until the new is there. */
export async function load(box, fetched, show) {
  const turn = (load.turns.get(box) ?? 0) + 1;
  load.turns.set(box, turn);
  box.setAttribute("aria-busy", "true");
  if (!box.hasChildNodes()) fill(box, el("p", { class: "empty" }, "Loading…"));
  try {
    const record = await fetched();
    if (load.turns.get(box) === turn) show(record);
  } catch (error) {
    if (load.turns.get(box) === turn) fill(box, failed(error, () => load(box, fetched, show)));
  } finally {
    if (load.turns.get(box) === turn) box.removeAttribute("aria-busy");
  }
}
load.turns = new WeakMap();

export function failed(error, again) {
  return el("div", { class: "failed", role: "alert" }, el("p", {}, error.message), again ? button("Try again", again) : null);
}

export const empty = (...text) => el("p", { class: "empty" }, ...text);
