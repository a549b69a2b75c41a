// Policy and rules as text: errors in place, and which decisions a change would make otherwise before it is saved.

import { el, button, fill, select } from "./dom.js";
import { nodes } from "./visible.js";
import { get, post, put, remove } from "./api.js";
import { on } from "./follow.js";
import { load, toast, busy, dialog } from "./notices.js";
import { ReachBox } from "./reach.js";

const LEADS = {
  policy: "What happens to each effect in each scope, if no rule or correction decides. The gate asks about any effect or scope that is not listed.",
  rules: "Rules take precedence over corrections, the policy and the model, and a deny over an allow.",
};
const DAYS = [["1", "the last day"], ["7", "the last 7 days"], ["30", "the last 30 days"]];
const LINE = /\bline (\d+)/;

export class Editor {
  /** `name` is `policy` or `rules`: the route, and the words. */
  constructor(name, may) {
    Object.assign(this, { name, may });
    this.path = `/v1/${name}`;
    this.build();
    on("files", () => this.element.isConnected && this.changedElsewhere());
  }

  build() {
    const { name } = this;
    this.numbers = el("div", { class: "numbers", "aria-hidden": "true" });
    this.text = el("textarea", { spellcheck: false, autocomplete: "off", wrap: "off", "aria-label": `Text of the ${name}`, "aria-describedby": `${name}-error`, oninput: () => this.typed(), onscroll: () => { this.numbers.scrollTop = this.text.scrollTop; } });
    this.error = el("div", { class: "error-line", id: `${name}-error`, role: "alert" });
    this.save = button("Save", () => this.submit(), { class: "primary" });
    this.discard = button("Discard changes", () => this.open(this.kept));
    this.restore = button("Restore the default…", () => this.toDefault(), { class: "link", hidden: true });
    this.days = select(DAYS, "7", () => this.reach.update(0), { "aria-label": "Period of the preview" });
    this.reach = new ReachBox({
      asked: () => (this.kept && this.text.value !== this.kept.text ? { text: this.text.value, days: Number(this.days.value) } : null),
      fetched: (choice) => post(`${this.path}/preview`, { ...choice, limit: 100 }),
      save: this.save,
      onerror: (error) => this.complain(error),
      may: this.may.change,
    });
    this.state = el("p", { class: "note", role: "status" });
    this.frame = el("div", { class: "editor-part", hidden: true },
      el("div", { class: "editor" }, this.numbers, this.text), this.error,
      el("div", { class: "answers" }, this.save, this.discard, this.restore, this.state),
      el("section", { class: "reach-part" }, el("div", { class: "reach-title" }, el("h3", {}, "Reach"), this.days), this.reach.box));
    this.loading = el("div", {});
    this.element = el("section", { "aria-labelledby": `${name}-title` },
      el("div", { class: "title" }, el("h2", { id: `${name}-title`, tabIndex: -1 }, name === "policy" ? "Policy" : "Rules")),
      el("p", { class: "lead" }, LEADS[name], this.may.change ? "" : " Saving needs the role admin."),
      this.loading, this.frame);
  }

  /** Unsaved text survives a look at another page. */
  show() {
    if (this.dirty()) return undefined;
    return load(this.loading, () => get(this.path), (record) => {
      fill(this.loading);
      this.frame.hidden = false;
      if (!this.dirty()) this.open(record); // somebody may have begun to type meanwhile
    });
  }

  dirty() {
    return Boolean(this.kept) && this.text.value !== this.kept.text;
  }

  open(record) {
    this.kept = record;
    this.text.value = record.text;
    // Browsers keep line ends as \n: what is compared with is what the field holds.
    this.kept = { ...record, text: this.text.value };
    this.typed(0);
  }

  typed(patience) {
    const lines = this.text.value.split("\n").length;
    if (lines !== this.lines) fill(this.numbers, Array.from({ length: lines + 1 }, (_, i) => el("span", {}, i < lines ? String(i + 1) : " ")));
    this.lines = lines;
    if (!this.dirty()) this.complain(null);
    this.discard.disabled = !this.dirty();
    this.restore.hidden = this.name !== "policy" || this.kept.default || !this.may.change;
    this.reach.update(patience);
    this.settle();
  }

  settle() {
    this.state.textContent = !this.dirty() ? (this.kept.default ? "This is the default." : "No unsaved changes.") : "Unsaved changes.";
    this.days.hidden = !this.dirty();
    if (!this.dirty()) fill(this.reach.box, el("p", { class: "note" }, "Change the text to see which decisions it would have changed."));
  }

  /** A mistake in the text, shown where it is; true where this was one. */
  complain(error) {
    for (const wrong of this.numbers.querySelectorAll(".wrong")) wrong.classList.remove("wrong");
    this.text.setAttribute("aria-invalid", String(Boolean(error && error.status === 422)));
    if (!error || error.status !== 422) { fill(this.error); return false; }
    const line = Number(LINE.exec(error.message)?.[1] ?? 0);
    this.numbers.children[line - 1]?.classList.add("wrong");
    fill(this.error, el("p", {}, nodes(error.message), line ? button(`Go to line ${line}`, () => this.goTo(line), { class: "link" }) : null));
    return true;
  }

  goTo(line) {
    const before = this.text.value.split("\n").slice(0, line - 1);
    const start = before.join("\n").length + (before.length ? 1 : 0);
    const end = this.text.value.indexOf("\n", start);
    this.text.focus();
    this.text.setSelectionRange(start, end < 0 ? this.text.value.length : end);
    this.text.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(this.text).lineHeight));
  }

  submit(overwrite = false) {
    if (!this.reach.ready && !overwrite) return undefined;
    return busy(this.save, async () => {
      try {
        this.open(await put(this.path, { text: this.text.value, ...(overwrite ? {} : { stamp: this.kept.stamp }) }));
        toast(`Saved: the ${this.name === "rules" ? "rules apply" : "policy applies"} from the next decision on.`);
      } catch (error) {
        if (error.status === 409) this.conflict();
        else if (!this.complain(error)) throw error;
      }
    }).then(() => this.reach.settle(this.reach.asked()));
  }

  conflict() {
    const box = dialog("Somebody else has changed this");
    fill(box.body,
      el("p", {}, "The text on the gate has changed since you started."),
      el("footer", {},
        button("Keep editing", box.close),
        button("Load theirs and lose mine", async () => { box.close(); await this.reloadNow(); }),
        button("Overwrite theirs", () => { box.close(); this.submit(true); }, { class: "primary danger" })));
  }

  async reloadNow() {
    try {
      this.open(await get(this.path));
    } catch (error) {
      toast(error.message, { bad: true });
    }
  }

  toDefault() {
    const box = dialog("Restore the default policy?");
    const go = button("Restore", () => busy(go, async () => { this.open(await remove(this.path)); box.close(); toast("The default policy applies from the next decision on."); }), { class: "primary danger" });
    fill(box.body, el("p", {}, "Your policy will be replaced by Gradproof's own."), el("footer", {}, button("Cancel", box.close), go));
  }

  async changedElsewhere() {
    if (!this.kept) return;
    if (!this.dirty()) { this.show(); return; }
    try {
      const there = await get(this.path);
      if (there.stamp !== this.kept.stamp) toast(`Somebody else has changed the ${this.name}.`);
    } catch { /* the connection's own message says so */ }
  }
}

