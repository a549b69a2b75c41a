// Corrections: what people said, and taking it back, with what that changes shown first.

import { el, button, fill } from "./dom.js";
import { said, plain } from "./visible.js";
import { pill, when, callLine, count } from "./words.js";
import { get, post, remove } from "./api.js";
import { on } from "./follow.js";
import { load, empty, dialog, toast, busy } from "./notices.js";
import { ReachBox } from "./reach.js";

const DAYS = 7;
const SCOPES = { folder: "the folder and below", project: "anything in the project", host: "the whole host" };

export class Corrections {
  constructor({ onselect }) {
    this.onselect = onselect;
    this.box = el("div", {});
    this.element = el("section", { "aria-labelledby": "corrections-title" },
      el("div", { class: "title" }, el("h2", { id: "corrections-title", tabIndex: -1 }, "Corrections")),
      el("p", { class: "lead" }, "A correction applies at once, to its own call and to calls that do no more. A newer correction takes precedence over an older one, and a block over an allow of the same age. To add one, open a decision and choose Correct."),
      this.box);
    on("corrections", () => this.element.isConnected && this.show());
  }

  show() {
    return load(this.box, () => get("/v1/corrections"), ({ corrections }) => {
      fill(this.box, corrections.length
        ? el("ul", { class: "cards" }, corrections.map((correction) => this.card(correction)))
        : empty("Nobody has corrected a decision yet."));
    });
  }

  card(correction) {
    const { id } = correction;
    const does = correction.allow ? correction.does : [correction.does[correction.named] ?? correction.does[0]];
    return el("li", { class: "card", "data-correction": id },
      el("div", { class: "card-head" }, pill(correction.allow ? "allow" : "block"), el("strong", {}, id), el("span", { class: "when" }, when(correction.time))),
      el("ul", { class: "does" }, does.map((text) => el("li", {}, said(text)))),
      callLine(correction.text),
      el("p", { class: "meta" },
        el("span", {}, String(correction.kind).startsWith("false_") ? "given as a mistake of the gate" : "given", correction.actor ? [" by ", said(correction.actor)] : ""),
        el("span", {}, "reaches ", reaches(correction))),
      el("div", { class: "answers" },
        button("Show the decision", () => this.onselect(correction.decision), { class: "link" }),
        button("Retract…", () => this.retract(correction), { "aria-label": `Retract ${plain(id)}` })));
  }

  retract(correction) {
    const { id } = correction;
    const box = dialog(`Retract ${plain(id)}?`, { wide: true });
    const save = button("Retract", () => busy(save, async () => {
      await remove(`/v1/corrections/${encodeURIComponent(id)}`);
      box.close();
      toast(`Retracted ${plain(id)}: it no longer applies.`);
      this.show();
    }), { class: "primary danger" });
    const reach = new ReachBox({
      asked: () => ({ retract: id, days: DAYS }),
      fetched: (choice) => post("/v1/corrections/preview", { ...choice, limit: 100 }),
      save,
    });
    fill(box.body,
      el("ul", { class: "does" }, correction.does.map((text) => el("li", {}, said(text)))),
      el("h3", {}, "Reach"), reach.box,
      el("footer", {}, button("Cancel", box.close), save));
    reach.update(0);
  }
}

function reaches({ allow, scope, does }) {
  if (!allow) return "the same act on targets at least as wide";
  if (scope?.startsWith("pattern=")) return ["targets that match ", said(scope.slice("pattern=".length))];
  return SCOPES[scope] ?? `the same ${count(does.length, "target").replace(/^1 /, "")}`;
}
