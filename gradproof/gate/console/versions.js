// Versions of the model, and going back to one.

import { el, button, fill } from "./dom.js";
import { get, post } from "./api.js";
import { on } from "./follow.js";
import { load, empty, dialog, toast, busy } from "./notices.js";
import { when, figure, count } from "./words.js";

export class Versions {
  constructor(may) {
    this.may = may;
    this.box = el("div", {});
    this.element = el("section", { "aria-labelledby": "versions-title" },
      el("div", { class: "title" }, el("h2", { id: "versions-title", tabIndex: -1 }, "Versions")),
      el("p", { class: "lead" }, "The learner promotes a version if it is no worse on held-back calls. Rules, policy and corrections do not depend on the version.", may.change ? "" : " Rolling back needs the role admin."),
      this.box);
    on("serving", () => this.element.isConnected && this.show());
  }

  show() {
    return load(this.box, () => get("/v1/versions"), ({ serving, versions }) => {
      fill(this.box, versions.length ? this.table(serving, [...versions].reverse()) : empty("There is no version yet."));
    });
  }

  table(serving, versions) {
    const heads = ["Version", "Made", "From", "Signals", "Held-back error", "Pinned mistakes wrong", "Thresholds", ""];
    const kept = new Set(versions.map(({ version }) => version));
    const row = (version) => el("tr", { class: version.serving ? "serving" : "", "data-version": version.version },
      el("td", { "data-label": "Version" }, el("strong", {}, String(version.version)), version.serving ? el("span", { class: "tag" }, "serves") : null),
      el("td", { "data-label": "Made" }, when(version.time)),
      el("td", { "data-label": "From" }, version.came_from ? String(version.came_from) : "–"),
      el("td", { "data-label": "Signals" }, Number(version.signals).toLocaleString("en")),
      el("td", { "data-label": "Held-back error" }, figure(version.held_error, 4)),
      el("td", { "data-label": "Pinned mistakes wrong" }, String(version.pinned_wrong)),
      el("td", { "data-label": "Thresholds" }, `allow from ${figure(version.allow_at, 3)}, block below ${figure(version.block_below, 3)}`),
      el("td", { class: "act" }, !version.serving && this.may.change ? button("Roll back…", () => this.rollBack(version, serving), { "aria-label": `Roll back to version ${version.version}` }) : null));
    const note = serving && !kept.has(serving) ? el("p", { class: "note" }, `Version ${serving} serves.`) : null;
    return [note, el("table", { class: "versions stacks" }, el("caption", { class: "hidden" }, count(versions.length, "version")), el("thead", {}, el("tr", {}, heads.map((name) => el("th", {}, name)))), el("tbody", {}, versions.map(row)))];
  }

  rollBack({ version }, serving) {
    const box = dialog(`Roll back to version ${version}?`);
    const go = button(`Serve version ${version}`, () => busy(go, async () => {
      try {
        const done = await post("/v1/versions/rollback", { version, serving });
        toast(`Version ${done.serving} serves.`);
      } finally {
        box.close();
        this.show();
      }
    }), { class: "primary danger" });
    fill(box.body,
      el("p", {}, `Version ${version} decides in place of version ${serving} from the next call on.`),
      el("p", {}, "Trust is reset: the model cannot allow a call instead of asking until enough of people's judgements agree with it."),
      el("footer", {}, button("Cancel", box.close), go));
  }
}
