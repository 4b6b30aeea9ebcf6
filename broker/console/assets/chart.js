// Charts of the last minutes, drawn by uPlot in the page's own colours.

import { h } from "./dom.js";

const HEIGHT_PX = 170;
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

/**
 * A chart. `series` are objects with `label`, `color` (the name of a custom property of the style sheet), `value(number)`
 * (as text) and `dash`. Returns an object with `element` and `update(columns)`: times in seconds, then each series.
 */
export function chart({ title, series, signal, height = HEIGHT_PX }) {
  const place = h("div", { class: "plot" });
  const element = h("figure", { class: "chart" }, h("figcaption", null, title), place);
  let plot = null;
  let data = null;

  function make() {
    plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    plot = new window.uPlot(
      {
        width: Math.max(place.clientWidth, 160),
        height,
        cursor: { points: { size: 6 }, y: false },
        scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
        axes: [
          { ...axis, size: 26, space: 80, values: (_, ticks) => ticks.map(clock) },
          { ...axis, size: 56, incrs: WHOLE, values: (_, ticks) => ticks.map((tick) => series[0].value(tick)) },
        ],
        series: [
          { label: "at", value: (_, value) => (value === null ? "–" : clock(value)) },
          ...series.map((one) => ({
            label: one.label,
            stroke: color(one.color),
            fill: one.fill ? `${color(one.color)}22` : undefined,
            width: 1.5,
            dash: one.dash,
            points: { show: false },
            value: (_, value) => (value === null || value === undefined ? "–" : one.value(value)),
          })),
        ],
      },
      data ?? [[], ...series.map(() => [])],
      place,
    );
  }

  const resize = new ResizeObserver(() => {
    if (plot === null) make();
    else plot.setSize({ width: Math.max(place.clientWidth, 160), height });
  });
  resize.observe(place);
  const recolor = () => plot !== null && make();
  document.addEventListener("themechange", recolor);
  signal.addEventListener("abort", () => {
    resize.disconnect();
    document.removeEventListener("themechange", recolor);
    plot?.destroy();
  });

  return {
    element,
    update(columns) {
      data = columns;
      plot?.setData(columns);
    },
  };
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** The figures of a group, as the server tells them, in columns: seconds, stored and delivered a second, lag. */
export function columnsOf(points) {
  return [
    points.map((point) => point[0] / 1000),
    points.map((point) => point[1]),
    points.map((point) => point[2]),
    points.map((point) => point[3]),
  ];
}
