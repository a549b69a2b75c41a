// Signing in: a token that is pasted, or that a link carries behind the `#`, from where it is removed at once.

import { el, button, field, fill } from "./dom.js";
import { get, token } from "./api.js";

const MAY = { reviewer: { change: false }, admin: { change: true } };

/** Takes a token out of the address bar, before anything else is done. */
export function takeFromAddress() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return false;
  history.replaceState(null, "", location.pathname);
  token.keep(decodeURIComponent(found[1]).trim());
  return true;
}

/** Who the kept token belongs to; null where there is none. An agent may not work here, and its token is not kept. */
export async function whoAmI() {
  if (!token.get()) return null;
  const me = await get("/v1/me");
  if (MAY[me.role]) return { ...me, may: MAY[me.role] };
  token.forget();
  throw new Error("This token is an agent's. The console needs one of a reviewer or an admin.");
}

/** The form; `message` says why it is there again. */
export function signIn(onme, message = "") {
  const input = el("input", { type: "password", autocomplete: "off", spellcheck: false, required: true, placeholder: "gp_…", "aria-describedby": "sign-in-error" });
  const error = el("p", { class: "error-line", id: "sign-in-error", role: "alert" }, message);
  const go = button("Sign in", null, { class: "primary" });
  go.type = "submit";
  const form = el("form", { class: "sign-in", onsubmit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    fill(error);
    token.keep(input.value.trim());
    try {
      const me = await whoAmI();
      if (me) onme(me);
    } catch (failure) {
      token.forget();
      fill(error, failure.status === 401 ? "This token is not known, or was revoked." : failure.message);
      input.select();
    } finally {
      go.disabled = false;
    }
  } },
    el("img", { src: "/console/icon.svg", alt: "", width: 40, height: 40 }),
    el("h1", {}, "Gradproof gate"),
    field("Token", input),
    error, go,
    el("p", { class: "note" }, "An admin creates one with ", el("code", {}, "gradproof gate token add NAME --role reviewer"), ". It is kept only in this tab."));
  return el("main", { id: "main", class: "sign-in-page" }, form);
}
