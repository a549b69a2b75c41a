// The dialog by which a person says what should have happened: to a decision, or for good in answer to a question.

import { el, button, field, select, fill } from "./dom.js";
import { said, block } from "./visible.js";
import { pill, actWords } from "./words.js";
import { post, remove } from "./api.js";
import { dialog, toast, busy } from "./notices.js";
import { ReachBox } from "./reach.js";

const SCOPES = [
  ["", "Only the same target"],
  ["folder", "The same folder and everything below it"],
  ["project", "Anything in the project"],
  ["host", "Anything on the same host"],
  ["pattern", "Targets that match a pattern"],
  ["once", "Only the next identical call"],
];
const DAYS = [["1", "the last day"], ["7", "the last 7 days"], ["30", "the last 30 days"]];

/** Opens it. `answers`: the decision is a waiting question, and this is its answer. */
export function correct(decision, { allow, answers = false, onsaved } = {}) {
  const form = new CorrectionForm(decision, allow ?? decision.decision !== "allow", answers, onsaved);
  form.open();
}

class CorrectionForm {
  constructor(decision, allow, answers, onsaved) {
    Object.assign(this, { decision, allow, answers, onsaved });
    this.mistake = !answers && decision.decision === (allow ? "block" : "allow");
  }

  open() {
    this.dialog = dialog(this.answers ? (this.allow ? "Allow always" : "Block always") : "Correct this decision", { wide: true });
    this.save = button("", () => this.submit(), { class: "primary" });
    this.days = select(DAYS, "7", () => this.reach.update(0), { "aria-label": "Period of the preview" });
    this.reach = new ReachBox({ asked: () => this.asked(), fetched: (choice) => post("/v1/corrections/preview", { ...choice, limit: 100 }), save: this.save });
    this.choices = el("div", { class: "choices" });
    fill(this.dialog.body,
      el("p", { class: "dialog-reason" }, pill(this.decision.decision), " ", said(this.decision.reason)),
      block(this.decision.text, 500, 6),
      this.outcome(), this.choices,
      el("section", { class: "reach-part" }, el("div", { class: "reach-title" }, el("h3", {}, "Reach"), this.days), this.reach.box, this.onceNote = el("p", { class: "note", hidden: true }, "This allows one identical call and changes no other decision.")),
      el("footer", {}, button("Cancel", () => this.dialog.close()), this.save));
    this.redraw();
    this.dialog.body.querySelector("input, select")?.focus();
  }

  outcome() {
    const radio = (allow, label) => {
      const input = el("input", { type: "radio", name: "outcome", checked: this.allow === allow, onchange: () => { this.allow = allow; this.mistake = this.wrong(); this.redraw(); } });
      return el("label", { class: "choice" }, input, ` ${label}`);
    };
    return el("fieldset", { class: "outcome" }, el("legend", {}, this.answers ? "Answer" : "What should have happened?"), radio(true, "Allow"), radio(false, "Block"));
  }

  /** Whether the gate decided the opposite. */
  wrong() {
    return !this.answers && this.decision.decision === (this.allow ? "block" : "allow");
  }

  redraw() {
    fill(this.choices,
      this.allow ? this.scopes() : this.acts(),
      this.wrong() ? this.weight() : null);
    this.update();
  }

  scopes() {
    const options = SCOPES.filter(([value]) => value !== "once" || !this.answers);
    this.scope = select(options, "", () => this.update());
    this.pattern = el("input", { type: "text", spellcheck: false, autocomplete: "off", placeholder: "/home/ann/app/build/*", maxLength: 500, oninput: () => this.update() });
    this.patternField = field("Pattern", this.pattern, "* stands for any text, ? for one character.");
    return [field("How far it reaches", this.scope, "A call that does anything more than this one is not covered."), this.patternField];
  }

  acts() {
    this.act = this.decision.worst ?? 0;
    const acts = this.decision.acts ?? [];
    if (acts.length < 2) return el("p", { class: "note" }, "Also blocks calls that do the same to a wider target, through any wrapper.");
    return el("fieldset", {}, el("legend", {}, "Which act should be blocked?"),
      acts.map((act, i) => el("label", { class: "choice" },
        el("input", { type: "radio", name: "act", checked: i === this.act, onchange: () => { this.act = i; this.update(); } }), " ", actWords(act))));
  }

  weight() {
    const box = el("input", { type: "checkbox", checked: this.mistake, onchange: () => { this.mistake = box.checked; this.update(); } });
    return el("label", { class: "choice" }, box, " The gate was wrong: learn from it with more weight");
  }

  get once() {
    return this.allow && this.scope.value === "once";
  }

  /** What `--scope` would say; null where it is not complete. */
  reaches() {
    if (!this.allow || this.once) return "";
    if (this.scope.value !== "pattern") return this.scope.value;
    return this.pattern.value.trim() ? `pattern=${this.pattern.value.trim()}` : null;
  }

  kind() {
    if (this.wrong() && this.mistake) return this.allow ? "false_block" : "false_allow";
    return this.allow ? "override_allow" : "override_block";
  }

  asked() {
    const scope = this.reaches();
    if (scope === null || this.once) return null;
    return { id: this.decision.id, kind: this.kind(), scope, days: Number(this.days.value), ...(this.allow ? {} : { act: this.act }) };
  }

  update() {
    if (this.allow) this.patternField.hidden = this.scope.value !== "pattern";
    this.save.textContent = this.once ? "Allow once" : this.allow ? "Allow from now on" : "Block from now on";
    this.onceNote.hidden = !this.once;
    this.days.hidden = this.once;
    this.reach.update();
    if (this.once) this.save.disabled = false; // it reaches one call, and nothing else
  }

  submit() {
    if (!this.once && !this.reach.ready) return;
    const { id } = this.decision;
    const scope = this.reaches();
    const act = this.allow ? {} : { act: this.act };
    busy(this.save, async () => {
      const saved = this.answers
        ? await post(`/v1/asks/${id}`, { answer: this.allow ? "allow" : "block", for: "always", scope, ...act })
        : await post("/v1/feedback", { id, kind: this.kind(), scope, once: this.once, ...act });
      this.dialog.close();
      told(this.allow, saved.correction);
      this.onsaved?.();
    });
  }
}

function told(allow, correction) {
  if (!correction) return toast("Saved: the next identical call passes once.");
  const undo = async () => {
    try {
      await remove(`/v1/corrections/${encodeURIComponent(correction)}`);
      toast(`Retracted ${correction}.`);
    } catch (error) {
      toast(error.message, { bad: true });
    }
  };
  toast(`Saved as ${correction}: ${allow ? "allowed" : "blocked"} from now on.`, { undo: ["Retract", undo] });
}
