// How the gate is doing: what protects it, the journal, the audit log, the learner; settings and tokens for an admin.

import { el, button, field, select, fill } from "./dom.js";
import { said, plain } from "./visible.js";
import { get, post, put, remove } from "./api.js";
import { on } from "./follow.js";
import { load, empty, dialog, toast, busy } from "./notices.js";
import { when, share, count, figure } from "./words.js";

const FULL = 0.9; // share of the journal, from which on it is told
const ROLES = ["agent", "reviewer", "admin"];

/** What an operator should know before anything else, worst first: `[class, sentence]`. */
export function warnings(status) {
  const { daemon = {}, used, shadow, protected: safe, drift } = status;
  const told = [];
  if (daemon.complaint) told.push(["bad", plain(daemon.complaint)]);
  if (used >= 1) told.push(["bad", "The journal is full: new decisions replace old ones."]);
  else if (used >= FULL) told.push(["warn", `The journal is ${share(used, 0)} full.`]);
  if (shadow) told.push(["warn", "Shadow mode: calls are decided and recorded, and nothing is blocked."]);
  if (!safe) told.push(["warn", "Unprotected: an agent that runs as this user can change the gate. Run the gate as a separate user."]);
  if (daemon.learner && daemon.learner.running === false) told.push(["warn", "The learner is not running: corrections apply, but no new version is trained."]);
  if (drift?.errors?.drift) told.push(["warn", "The error rate is rising."]);
  if (drift?.inputs?.drift) told.push(["warn", "Input distribution: shifted."]);
  return told;
}

export class Status {
  constructor(may, onstatus) {
    Object.assign(this, { may, onstatus });
    this.box = el("div", {});
    this.settings = el("div", {});
    this.tokens = el("div", {});
    this.element = el("section", { "aria-labelledby": "status-title" },
      el("div", { class: "title" }, el("h2", { id: "status-title", tabIndex: -1 }, "Status"), button("Refresh", () => this.show())),
      this.box,
      el("section", { class: "block-part" }, el("h3", {}, "Settings"), this.settings),
      may.change ? el("section", { class: "block-part" }, el("h3", {}, "Tokens"), this.tokens) : null);
    on("serving", () => this.element.isConnected && this.show());
  }

  show() {
    const jobs = [
      load(this.box, () => get("/v1/status"), (status) => { this.onstatus(status); fill(this.box, this.cards(status)); }),
      load(this.settings, () => get("/v1/settings"), (settings) => fill(this.settings, this.settingsForm(settings))),
    ];
    if (this.may.change) jobs.push(load(this.tokens, () => get("/v1/tokens"), ({ tokens }) => fill(this.tokens, this.tokenList(tokens))));
    return Promise.all(jobs);
  }

  cards(status) {
    const { daemon = {}, counts = {}, judged = {}, trust = {}, drift = {} } = status;
    const total = (judged.allow ?? 0) + (judged.block ?? 0);
    const audit = daemon.audit ?? {};
    const learner = daemon.learner ?? {};
    const cards = [
      card("Protection", status.protected ? "Protected" : "Unprotected", status.protected ? "good" : "warn",
        status.protected ? "The store and the agents belong to different users." : "An agent that runs as the gate's user can change its files through any program."),
      card("Mode", status.shadow ? "Shadow" : "Enforcing", status.shadow ? "warn" : "good",
        status.shadow ? `Of ${count(status.shadowed?.decisions ?? 0, "recent call")}, the gate would have asked about ${status.shadowed?.ask ?? 0} and blocked ${status.shadowed?.block ?? 0}.` : "Blocked calls are refused; questions wait for an answer."),
      card("Journal", `${share(status.used, 0)} used`, status.used >= FULL ? "warn" : "good",
        [el("progress", { max: 1, value: Math.min(1, status.used ?? 0), "aria-label": "Journal used" }), `${count(counts.decisions ?? 0, "decision")}, ${count(counts.signals ?? 0, "signal")}, ${counts.pending ?? 0} waiting to be learned, ${count(counts.pinned ?? 0, "pinned mistake")}.`]),
      this.auditCard(audit),
      card("Model", status.serving ? `Version ${status.serving}` : "No version", "",
        [total ? `Alignment ${share(status.alignment)} of ${count(total, "judgement")}. ` : "Nothing has been judged yet. ", status.trusted ? "Trusted." : `Not trusted yet: ${trust.judgements ?? 0} of 500 judgements, ${trust.blocks ?? 0} of 50 to block.`]),
      card("Drift", drift.errors?.drift || drift.inputs?.drift ? "Found" : "None found", drift.errors?.drift || drift.inputs?.drift ? "warn" : "good",
        `${drift.errors?.judged ? `Errors ${share(drift.errors.rate)} of ${count(drift.errors.judged, "judged decision")}${drift.errors.drift ? ", rising" : ""}. ` : ""}Input distribution: ${drift.inputs?.drift ? "shifted" : "stable"} (stability index ${figure(drift.inputs?.index)}).`),
      card("Learner", learner.running ? "Running" : "Not running", learner.running ? "good" : "warn",
        [`${count(learner.restarts ?? 0, "restart")}. `, learner.last ? said(typeof learner.last === "string" ? learner.last : JSON.stringify(learner.last)) : "No round yet."]),
      card("Daemon", daemon.pid ? `Process ${daemon.pid}` : "–", "",
        [daemon.started ? ["Started ", when(daemon.started), ". "] : null, daemon.address ? ["Listens on ", said(daemon.address), daemon.socket ? [" and ", said(daemon.socket)] : "", ". "] : null]),
    ];
    return [el("p", { class: "note" }, "Store ", said(status.store)), el("div", { class: "grid" }, cards)];
  }

  auditCard({ count: lines, mac }) {
    const told = el("p", { role: "status" });
    const check = button("Check the log", () => busy(check, async () => {
      fill(told, "Checking…");
      const { whole, problems, lines: read } = await get("/v1/audit/check", {}, { seconds: 120 });
      fill(told, whole ? el("span", { class: "good" }, `Whole: ${count(read, "line")} verified.`) : el("span", { class: "bad" }, "Broken: ", problems.map((problem) => el("span", { class: "problem" }, said(typeof problem === "string" ? problem : JSON.stringify(problem)), " "))));
    }).finally(() => told.textContent === "Checking…" && fill(told)));
    return card("Audit log", count(lines ?? 0, "line"), "", [mac ? el("span", { class: "mac" }, "Head ", el("code", {}, said(mac))) : null, check, told]);
  }

  settingsForm(settings) {
    const readonly = !this.may.change;
    const toggle = (name, label, note) => {
      const box = el("input", { type: "checkbox", checked: settings[name], disabled: readonly });
      return [name, () => box.checked, el("div", {}, el("label", { class: "choice" }, box, ` ${label}`), el("small", {}, note))];
    };
    const number = (name, label, note) => {
      const box = el("input", { type: "number", min: "0", step: "any", value: String(settings[name]), disabled: readonly });
      return [name, () => Number(box.value), field(label, box, note)];
    };
    const controls = [
      toggle("shadow", "Shadow mode", "Decide and record, but block nothing."),
      toggle("log_arguments", "Keep arguments in the audit log", "Without secrets. Off by default."),
      number("ask_minutes", "Minutes until a question expires"),
      number("review_hours", "Hours before the gate learns from an unreviewed decision"),
      number("keep_days", "Days to keep lines of the audit log"),
    ].filter(([name]) => name in settings);
    const save = button("Save settings", () => busy(save, async () => {
      const changed = Object.fromEntries(controls.map(([name, value]) => [name, value()]).filter(([name, value]) => value !== settings[name]));
      if (!Object.keys(changed).length) { toast("Nothing has changed."); return; }
      if (changed.shadow && !(await sure("Turn on shadow mode?", "From the next decision on, every call is allowed, even if the floor blocks it.", "Turn on"))) return;
      await put("/v1/settings", changed);
      toast("Saved.");
      this.show();
    }), { class: "primary" });
    return [el("div", { class: "settings" }, controls.map(([, , element]) => element)), readonly ? el("p", { class: "note" }, "Changing settings needs the role admin.") : save];
  }

  tokenList(tokens) {
    const name = el("input", { type: "text", maxLength: 64, spellcheck: false, autocomplete: "off", placeholder: "ann" });
    const role = select(ROLES.map((one) => [one, one]), "reviewer");
    const told = el("div", { role: "status" });
    const add = button("Create a token", () => busy(add, async () => {
      const made = await post("/v1/tokens", { name: name.value.trim(), role: role.value });
      await this.show();
      this.tokens.append(el("p", { class: "secret" }, "Shown once: ", el("code", {}, made.token)));
    }));
    const take = (token) => async () => {
      if (!(await sure(`Revoke the token of ${plain(token.name)}?`, "Requests with it are refused from now on.", "Revoke"))) return;
      try {
        await remove(`/v1/tokens/${encodeURIComponent(token.name)}`);
        this.show();
      } catch (error) {
        toast(error.message, { bad: true });
      }
    };
    return [
      tokens.length ? el("ul", { class: "tokens" }, tokens.map((token) => el("li", {}, said(token.name), el("span", { class: "tag" }, String(token.role)), el("span", { class: "when" }, when(token.made)), button("Revoke…", take(token), { class: "link", "aria-label": `Revoke ${plain(token.name)}` })))) : empty("There are no tokens."),
      el("div", { class: "fields" }, field("Name", name), field("Role", role), add), told,
    ];
  }
}

function card(title, head, state, ...rest) {
  return el("article", { class: "card" }, el("h3", {}, title), el("p", { class: `card-state ${state}` }, head), el("div", { class: "card-text" }, rest));
}

/** Asks before something grave; resolves to whether to go on. */
function sure(title, text, yes) {
  return new Promise((resolve) => {
    const box = dialog(title, { onclose: () => resolve(false) });
    fill(box.body, el("p", {}, text), el("footer", {}, button("Cancel", box.close), button(yes, () => { resolve(true); box.close(); }, { class: "primary danger" })));
  });
}
