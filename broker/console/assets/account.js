// Who has signed in, and the dialog to do so. The secret is sent once, and kept by nobody here.

import { session, signIn, signOut } from "./api.js";
import { dialog } from "./dialog.js";
import { fill, h } from "./dom.js";

let open = false;

/** Ask for an account; resolves with true if one has signed in. */
export async function askAccount() {
  if (open) return false;
  open = true;
  try {
    return (await dialog("Sign in", form)) === true;
  } finally {
    open = false;
  }
}

function form(close) {
  const key = h("input", { type: "text", autocomplete: "username", required: true, autofocus: true, spellcheck: "false" });
  const secret = h("input", { type: "password", autocomplete: "current-password", required: true });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  return h(
    "form",
    {
      class: "stack",
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        problem.hidden = true;
        try {
          await signIn(key.value, secret.value);
          secret.value = "";
          close(true);
        } catch (error) {
          fill(problem, error.message);
          problem.hidden = false;
        } finally {
          button.disabled = false;
        }
      },
    },
    h("p", null, "With an account of the brokers. You may do here what that account may."),
    h("label", null, "Access key", key),
    h("label", null, "Secret key", secret),
    problem,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), button),
  );
}

/** The account in the bar. */
export function accountView() {
  if (session === null) return null;
  if (session.account !== null) {
    return [h("span", { class: "account" }, session.account), h("button", { type: "button", class: "quiet", onclick: () => signOut() }, "Sign out")];
  }
  return h("button", { type: "button", class: "quiet", onclick: () => askAccount() }, "Sign in");
}
