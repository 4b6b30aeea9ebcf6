// Reports of the simulator and the analysis.

import { ask } from "../api.js";
import { fill, h, href } from "../dom.js";
import { moment, number, size } from "../format.js";
import { table } from "../table.js";

const isPage = (path) => path.endsWith(".html");
const urlOf = (path) => `/reports/${path.split("/").map(encodeURIComponent).join("/")}`;

export async function show({ root, signal, parts }) {
  const found = await ask("/api/reports", null, signal);
  const list = table({
    caption: "Reports",
    filter: true,
    empty: "No report lies there yet: trivet analyze PATH --report DIR writes one.",
    key: (report) => report.path,
    columns: [
      { title: "Report", wide: true, cell: (report) => h("a", { href: href("reports", report.path) }, report.path), value: (report) => report.path },
      { title: "Written", cell: (report) => moment(report.at_ms), value: (report) => report.at_ms },
      { title: "Size", numeric: true, cell: (report) => size(report.size), value: (report) => report.size },
    ],
  });
  list.update(found.reports);
  const note = h("p", { class: "faint" }, `In ${found.directory}`, found.left_out > 0 && `; ${number(found.left_out)} older ones are left out`);
  const chosen = parts[0] ?? found.reports.find((report) => isPage(report.path))?.path;
  fill(
    root,
    h("h1", null, "Reports"),
    chosen && h("section", null, h("h2", null, chosen, " ", h("a", { class: "faint", href: urlOf(chosen), target: "_blank", rel: "noopener" }, "on a page of its own")), h("iframe", { src: urlOf(chosen), title: chosen, sandbox: "" })),
    h("section", null, note, list.element),
  );
}
