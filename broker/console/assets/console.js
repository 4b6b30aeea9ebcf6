// The page's frame: which page is shown, the bar above, the keys.

import { accountView, askAccount } from "./account.js";
import { forgetMissing, loadSession, onMissing, onSession, session } from "./api.js";
import { dialog, notify } from "./dialog.js";
import { fill, h, href } from "./dom.js";
import { live, restart, watch } from "./live.js";
import { PAGES } from "./pages/table.js";

const content = document.getElementById("content");
let leaving = null;

/** The parts of the address behind #/ and the query there. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean);
  try {
    return { parts: parts.map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
  } catch {
    return { parts: [], query: {} };
  }
}

/** Show the page that the address names. Its signal ends whatever the page before had begun. */
async function show() {
  leaving?.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  forgetMissing();
  const { parts, query } = place();
  const page = visible().find((one) => one.name === (parts[0] ?? "cluster"));
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.dataset.name === page?.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (page === undefined) {
    fill(content, h("h1", null, "No such page"), h("p", null, h("a", { href: href("cluster") }, "To the cluster")));
    return;
  }
  document.title = `${[...parts.slice(1).reverse(), page.title].join(" · ")} – Trivet`;
  const root = h("div", { class: "page", "data-page": page.name });
  const view = { root, signal, parts: parts.slice(1), query, fail: (error) => fail(root, error, signal), reload: show };
  fill(content, root);
  content.scrollTop = 0;
  try {
    await page.show(view);
  } catch (error) {
    fail(root, error, signal);
  }
}

/** Say on the page why there is nothing else on it. */
function fail(root, error, signal) {
  if (signal.aborted || error.name === "AbortError") return;
  if (!("kind" in error)) console.error(error);
  const needsAccount = error.kind === "no permission" || error.kind === "sign in";
  const old = root.querySelector(":scope > .failure");
  old?.remove();
  root.append(
    h(
      "div",
      { class: "failure", role: "alert" },
      h("p", null, error.message),
      needsAccount && session?.account === null
        ? h("button", { type: "button", class: "primary", onclick: () => askAccount() }, "Sign in")
        : h("button", { type: "button", onclick: show }, "Try again"),
    ),
  );
}

function visible() {
  return PAGES.filter((page) => !page.hidden?.(session));
}

function drawPages() {
  fill(
    document.getElementById("pages"),
    visible().map((page) =>
      h("a", { href: href(page.name), "data-name": page.name, title: `g ${page.key}` }, page.title),
    ),
  );
}

/** The state of the cluster for the bar: how good or bad it is, and in words. */
function healthOf(snapshot) {
  if (snapshot.refused) return ["warn", "an administrator is needed to see the nodes"];
  const groups = snapshot.groups;
  if (groups.length === 0) return ["bad", snapshot.failure || "no broker is registered"];
  const leaderless = groups.filter((group) => group.leader === null);
  if (leaderless.length) return ["bad", `${leaderless.map((group) => group.name).join(", ")}: no leader`];
  const silent = groups.flatMap((group) => group.nodes).filter((node) => node.error !== null);
  if (silent.length) return ["warn", `${silent.map((node) => node.node).join(", ")} silent`];
  return snapshot.failure ? ["warn", snapshot.failure] : ["good", "all nodes answer"];
}

function drawBar({ snapshot, connected }) {
  // Where brokers have no accounts there is nobody to sign in as.
  const account = document.getElementById("account");
  account.hidden = session?.account === null && snapshot !== null && !snapshot.refused;
  const health = document.getElementById("health");
  const [kind, text] = connected ? healthOf(snapshot) : ["bad", "no connection to the console"];
  if (health.dataset.text === kind + text) return;
  health.dataset.text = kind + text;
  fill(health, h("span", { class: `dot ${kind}` }), text);
}

// Keys ---------------------------------------------------------------------------------------------------------------

let prefix = false;

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (prefix) {
    prefix = false;
    const page = visible().find((one) => one.key === event.key);
    if (page) {
      location.hash = href(page.name);
      event.preventDefault();
    }
    return;
  }
  if (event.key === "g") {
    prefix = true;
    setTimeout(() => (prefix = false), 1500);
  } else if (event.key === "/") {
    const input = content.querySelector("[data-filter]");
    if (input) {
      input.focus();
      event.preventDefault();
    }
  } else if (event.key === "?") keys();
  else if (event.key === "t") turnTheme();
  else if (event.key === "r") show();
});

function keys() {
  const rows = [
    ...visible().map((page) => [`g ${page.key}`, page.title]),
    ["/", "to the filter"],
    ["r", "load this page anew"],
    ["t", "light or dark"],
    ["Esc", "out of a field, or close a dialog"],
  ];
  dialog("Keys", (close) => [
    h("dl", { class: "keys" }, rows.map(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)])),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(), autofocus: true }, "Close")),
  ]);
}

function turnTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("trivet-theme", root.dataset.theme);
  } catch {
    // Where nothing may be stored, the choice lasts as long as this page.
  }
  document.dispatchEvent(new Event("themechange"));
}

// Begin --------------------------------------------------------------------------------------------------------------

document.getElementById("help").addEventListener("click", keys);
document.getElementById("theme").addEventListener("click", turnTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
addEventListener("hashchange", show);
watch(drawBar);
onMissing((groups) => {
  content.querySelector(":scope > .problem")?.remove();
  const told = groups.map((one) => h("span", { title: one.why }, `Without ${one.group}, which does not answer. `));
  if (groups.length) content.prepend(h("p", { class: "problem", role: "status" }, told));
});
onSession(() => {
  fill(document.getElementById("account"), accountView());
  fill(document.getElementById("mode"), session.writable ? "" : "read only");
  drawPages();
  live.snapshot = null;
  restart();
  show();
});
loadSession().catch((error) => {
  notify(error.message, "bad");
  setTimeout(() => location.reload(), 3000);
});
