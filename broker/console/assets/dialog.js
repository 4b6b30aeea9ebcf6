// Dialogs and notices.

import { fill, h } from "./dom.js";

/** Tell of something at the lower edge for a few seconds; a failure stays until it is closed, and is not shown twice. */
export function notify(text, kind = "good") {
  const notices = document.getElementById("notices");
  if (kind !== "good" && [...notices.children].some((one) => one.firstChild.textContent === text)) return;
  const notice = h(
    "div",
    { class: `notice ${kind}` },
    h("span", null, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => notice.remove() }, "×"),
  );
  notices.append(notice);
  if (kind === "good") setTimeout(() => notice.remove(), 6000);
}

/**
 * A dialog; resolves with what `close` is called with, null when it is left. `build(close)` returns its content.
 * The browser keeps the focus inside of it, and Escape leaves it.
 */
export function dialog(title, build) {
  return new Promise((resolve) => {
    let result = null;
    const close = (value = null) => {
      result = value;
      element.close();
    };
    const element = h(
      "dialog",
      {
        "aria-label": title,
        onclose: () => {
          element.remove();
          resolve(result);
        },
      },
      h("h2", null, title),
      build(close),
    );
    document.body.append(element);
    element.showModal();
    element.querySelector("[autofocus]")?.focus();
  });
}

/**
 * Ask before a change. `typed` is a name that has to be written out for what cannot be undone. `act()` makes the change
 * while the dialog is open, and may throw; resolves with what it returned, null if nothing was done.
 */
export function confirm({ title, text, verb, danger = false, typed = null, act }) {
  return dialog(title, (close) => {
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const input =
      typed === null ? null : h("input", { type: "text", autocomplete: "off", spellcheck: "false", autofocus: true, oninput: check });
    const button = h("button", { type: "submit", class: danger ? "danger" : "primary" }, verb);
    const form = h(
      "form",
      { class: "stack", onsubmit: submit },
      text,
      input && h("label", null, "Write ", h("code", null, typed), " to confirm", input),
      problem,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(), autofocus: typed === null }, "Cancel"), button),
    );
    function check() {
      button.disabled = input !== null && input.value !== typed;
    }
    async function submit(event) {
      event.preventDefault();
      check();
      if (button.disabled) return;
      button.disabled = true;
      problem.hidden = true;
      try {
        close((await act()) ?? true);
      } catch (error) {
        fill(problem, error.message);
        problem.hidden = false;
        button.disabled = false;
      }
    }
    check();
    return form;
  });
}
