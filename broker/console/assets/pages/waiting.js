// Messages that wait: for a delay level, for a time, for their producer's decision.

import { ask } from "../api.js";
import { facts, fill, h, href, pill } from "../dom.js";
import { DASH, duration, moment, number } from "../format.js";
import { poll } from "../poll.js";
import { preview } from "../body.js";
import { table } from "../table.js";

const AGAIN_MS = 4000;

function list(caption, empty, first) {
  return table({
    caption,
    empty,
    key: ({ shown: { message } }) => `${message.broker} ${message.topic} ${message.queue} ${message.offset}`,
    columns: [
      ...first,
      { title: "To", cell: (one) => h("a", { href: href("topics", one.home) }, one.home), value: (one) => one.home },
      {
        title: "Stored",
        cell: ({ shown: { message } }) =>
          h("a", { href: href("messages", message.topic, message.broker, String(message.queue), String(message.offset)) }, moment(message.stored_ms, true)),
        value: (one) => one.shown.message.stored_ms,
      },
      { title: "Keys", cell: (one) => one.shown.message.keys.join(" ") || DASH },
      { title: "Body", wide: true, cell: (one) => preview(one.shown) },
    ],
  });
}

export function show({ root, signal, fail }) {
  const figures = h("dl", { class: "facts" });
  const levels = h("p", { class: "faint" });
  const delayed = list("Delayed messages", "None waits for a time.", [
    {
      title: "Due",
      cell: (one) => [one.due_ms === null ? DASH : moment(one.due_ms), h("span", { class: "faint" }, one.due_ms === null ? "" : ` in ${duration(Math.max(0, one.due_ms - Date.now()))}`)],
      value: (one) => one.due_ms,
    },
    { title: "Level", numeric: true, cell: (one) => (one.level === null ? pill("time") : number(one.level)), value: (one) => one.level },
  ]);
  const half = list("Half messages", "None waits for a decision.", [{ title: "Producer group", cell: (one) => one.producer_group ?? DASH }]);
  fill(
    root,
    h("h1", null, "Waiting messages"),
    h("section", null, figures, levels, h("h2", null, "Delayed"), delayed.element),
    h("section", null, h("h2", null, "Half: sent in a transaction that is not decided"), half.element),
  );
  poll(async () => {
    const waiting = await ask("/api/waiting", null, signal);
    const byLevel = Object.entries(waiting.by_level);
    const atLevels = byLevel.reduce((sum, [, value]) => sum + value, 0);
    fill(
      figures,
      facts([["At a delay level", number(atLevels)], ["For a time", number(waiting.timed)], ["Half", number(waiting.half)]]),
    );
    fill(levels, byLevel.map(([level, value]) => `level ${level}: ${number(value)}`).join(", "));
    delayed.update(waiting.delayed_messages);
    half.update(waiting.half_messages);
  }, AGAIN_MS, signal, fail);
}
