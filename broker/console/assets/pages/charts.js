// The figures of the last quarter of an hour, large.

import { chart, columnsOf } from "../chart.js";
import { fill, h } from "../dom.js";
import { number, rate } from "../format.js";
import { watch } from "../live.js";

export function show({ root, signal }) {
  const views = new Map();
  const place = h("div");
  fill(root, h("h1", null, "Charts"), h("p", { class: "faint" }, "The last quarter of an hour, a point a second while a page is open."), place);
  watch(({ points }) => {
    for (const [group, kept] of Object.entries(points)) {
      if (!views.has(group)) {
        const view = {
          flow: chart({
            title: "Messages a second",
            height: 280,
            signal,
            series: [
              { label: "stored", color: "--accent", value: rate, fill: true },
              { label: "delivered", color: "--second", value: rate },
            ],
          }),
          lag: chart({
            title: "Entries that the slowest node has yet to apply",
            height: 200,
            signal,
            series: [{ label: "lag", color: "--third", value: number, fill: true }],
          }),
        };
        views.set(group, view);
        place.append(h("section", null, h("h2", null, h("code", null, group)), view.flow.element, view.lag.element));
      }
      const columns = columnsOf(kept);
      views.get(group).flow.update(columns.slice(0, 3));
      views.get(group).lag.update([columns[0], columns[3]]);
    }
  }, signal);
}
