// Settings in force, side by side for all nodes, and where each is from.

import { ask, order, session, tellDone } from "../api.js";
import { confirm } from "../dialog.js";
import { fill, h, head, pill, tick } from "../dom.js";
import { table } from "../table.js";

const ORIGINS = { default: "plain", file: "good", "run time": "warn", unknown: "plain" };

export async function show({ root, signal, reload }) {
  let onlyGiven = true;
  fill(root, h("h1", null, "Settings"), h("p", { class: "faint" }, "Asking every node…"));
  const nodes = await ask("/api/settings", null, signal);
  const rows = new Map();
  for (const node of nodes) {
    for (const setting of node.settings) {
      if (!rows.has(setting.name)) rows.set(setting.name, { name: setting.name, changeable: setting.changeable, at: {} });
      rows.get(setting.name).at[node.address] = setting;
    }
  }
  const list = table({
    caption: "Settings",
    filter: true,
    empty: "None.",
    key: (row) => row.name,
    sort: { column: 0 },
    columns: [
      { title: "Setting", cell: (row) => h("code", null, row.name), value: (row) => row.name },
      ...nodes.map((node) => ({
        title: node.address,
        wide: true,
        cell: (row) => settingView(row.at[node.address]),
        value: (row) => row.at[node.address]?.value,
      })),
      ...(session.writable
        ? [{ title: "", cell: (row) => row.changeable && h("button", { type: "button", class: "link", onclick: () => change(row, nodes, reload) }, "change") }]
        : []),
    ],
  });
  const draw = () =>
    list.update([...rows.values()].filter((row) => !onlyGiven || row.changeable || Object.values(row.at).some((setting) => setting.origin !== "default")));
  fill(
    root,
    head("Settings", tick("with all defaults", (ticked) => ((onlyGiven = !ticked), draw()))),
    h(
      "section",
      null,
      h("p", { class: "faint" }, "Settings that were given, and those that may change while a node runs. ", pill("file", "good"), " from the node's file, ", pill("run time", "warn"), " changed while it ran; all others are built in. Secrets are told to nobody."),
      list.element,
    ),
  );
  draw();
}

function settingView(setting) {
  if (setting === undefined) return "–";
  return [h("code", null, setting.value === "" ? "(empty)" : setting.value), setting.origin !== "default" && [" ", pill(setting.origin, ORIGINS[setting.origin])]];
}

async function change(row, nodes, reload) {
  const value = h("input", { type: "text", value: Object.values(row.at)[0].value, autofocus: true, spellcheck: "false" });
  const where = h("select", null, h("option", { value: "" }, "all nodes"), nodes.map((node) => h("option", { value: node.address }, node.address)));
  const done = await confirm({
    title: `Change ${row.name}`,
    text: [h("label", null, "Value", value), h("label", null, "Where", where), h("p", { class: "faint" }, "A node keeps it over a restart, whatever its file says.")],
    verb: "Change",
    act: () => order("/api/settings/change", { name: row.name, value: value.value, address: where.value || null }),
  });
  if (done) {
    tellDone(`Changed at ${done.join(", ")}.`);
    reload();
  }
}
