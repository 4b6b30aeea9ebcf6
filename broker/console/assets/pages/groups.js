// Consumer groups: their lag; one of them with its queues and members; a reset, after a preview of what it skips or repeats.

import { api, ask, order, session, tellDone } from "../api.js";
import { confirm, dialog } from "../dialog.js";
import { facts, fill, h, head, href, pill, tick } from "../dom.js";
import { DASH, count, duration, fromInput, number, rate, toInput } from "../format.js";
import { poll } from "../poll.js";
import { table } from "../table.js";

const AGAIN_MS = 4000;

export function show(view) {
  return view.parts.length ? showOne(view, view.parts[0]) : showAll(view);
}

function showAll({ root, signal, fail }) {
  let withSystem = false;
  const list = table({
    caption: "Consumer groups",
    filter: true,
    empty: "No consumer group yet. The first consumer of one makes it.",
    key: (group) => group.name,
    columns: [
      { title: "Consumer group", cell: (group) => h("a", { href: href("groups", group.name) }, group.name), value: (group) => group.name },
      { title: "Members", numeric: true, cell: (group) => (group.members ? number(group.members) : pill("none", group.lag ? "warn" : "plain")), value: (group) => group.members },
      { title: "Lag", numeric: true, cell: (group) => number(group.lag), value: (group) => group.lag },
      { title: "Consumes", numeric: true, cell: (group) => rate(group.consumed_per_s), value: (group) => group.consumed_per_s },
      { title: "Kind", cell: (group) => group.kind ?? DASH },
      { title: "Topics", wide: true, cell: (group) => group.topics.map((topic, index) => [index > 0 && ", ", h("a", { href: href("topics", topic) }, topic)]), value: (group) => group.topics.join(" ") },
    ],
  });
  let wake = () => {};
  fill(
    root,
    head("Consumer groups", tick("with the brokers' own", (ticked) => ((withSystem = ticked), wake()))),
    h("section", null, list.element),
  );
  const question = async () => list.update(await ask("/api/groups", { system: withSystem }, signal));
  wake = () => question().catch(fail);
  poll(question, AGAIN_MS, signal, fail);
}

function showOne({ root, signal, fail, reload }, name) {
  const figures = h("dl", { class: "facts" });
  const conflicts = h("div");
  const queues = table({
    caption: "Queues",
    filter: true,
    empty: "It has read nothing, and none of its members tells of a queue.",
    key: (queue) => `${queue.topic} ${queue.broker} ${queue.queue}`,
    sort: null,
    columns: [
      { title: "Topic", cell: (queue) => h("a", { href: href("topics", queue.topic) }, queue.topic), value: (queue) => queue.topic },
      { title: "Broker group", cell: (queue) => queue.broker },
      { title: "Queue", numeric: true, cell: (queue) => number(queue.queue), value: (queue) => queue.queue },
      { title: "Position", numeric: true, cell: (queue) => number(queue.position), value: (queue) => queue.position },
      { title: "End", numeric: true, cell: (queue) => number(queue.end), value: (queue) => queue.end },
      {
        title: "Lag",
        numeric: true,
        cell: (queue) =>
          queue.lag
            ? h("a", { href: href("messages", { topic: queue.topic, by: "offset", broker: queue.broker, queue: queue.queue, offset: Math.max(queue.position, queue.begin) }) }, number(queue.lag))
            : "0",
        value: (queue) => queue.lag,
      },
      { title: "Oldest waits", numeric: true, cell: (queue) => (queue.lag ? duration(queue.lag_s * 1000) : DASH), value: (queue) => queue.lag_s },
      { title: "Held by", cell: (queue) => h("code", null, queue.owner ?? DASH), value: (queue) => queue.owner },
    ],
  });
  const members = table({
    caption: "Members",
    empty: "Nobody is connected.",
    key: (member) => member.client_id,
    columns: [
      { title: "Client", cell: (member) => h("code", null, member.client_id), value: (member) => member.client_id },
      { title: "Address", cell: (member) => h("code", null, member.address) },
      { title: "Language", cell: (member) => member.language },
      { title: "Version", numeric: true, cell: (member) => member.version, value: (member) => member.version },
      {
        title: "Subscribes to",
        wide: true,
        cell: (member) =>
          member.subscriptions === null
            ? h("span", { class: "faint" }, "does not tell")
            : member.subscriptions.map((one) => h("div", null, `${one.topic}: `, h("code", null, one.expression), one.kind === "TAG" ? "" : ` (${one.kind})`)),
      },
    ],
  });
  fill(
    root,
    head(
      h("code", null, name),
      h(
        "div",
        { class: "row" },
        h("a", { href: href("dead-letters", name) }, "Dead letters"),
        h("button", { type: "button", onclick: () => sendElsewhere(name, known, reload) }, "Reset positions…"),
        session.writable && h("button", { type: "button", class: "danger", onclick: () => remove(name) }, "Delete"),
      ),
    ),
    conflicts,
    h("section", null, figures, queues.element),
    h("section", null, h("h2", null, "Members"), members.element),
  );
  let known = null;
  poll(async () => {
    known = await ask(api("groups", name), null, signal);
    fill(
      figures,
      facts([
        ["Lag", number(known.lag)],
        ["Longest wait", known.lag ? duration(known.lag_s * 1000) : DASH],
        ["Consumes", rate(known.consumed_per_s)],
        ["Members", number(known.members.length)],
        ["Kind", known.kind ?? DASH],
        ["Retries at most", number(known.retries_max)],
      ]),
    );
    fill(
      conflicts,
      !known.may_consume && h("p", { class: "problem" }, "This consumer group may not consume: its settings say so."),
      known.conflicts.map((conflict) =>
        h(
          "section",
          { class: "conflict", role: "alert" },
          h("h2", null, pill("conflict", "bad"), " Members disagree about ", h("code", null, conflict.topic)),
          h("p", null, "Each member is given some of the queues, and passes over what it has not subscribed to: members that want those messages do not get them."),
          h(
            "ul",
            null,
            conflict.wanted.map(([expression, clients]) =>
              h("li", null, expression === null ? "not subscribed: " : [h("code", null, expression), ": "], clients.join(", ")),
            ),
          ),
        ),
      ),
    );
    queues.update(known.queues);
    members.update(known.members);
  }, AGAIN_MS, signal, fail);
}

const TARGETS = [
  ["earliest", "to the first message that is kept"],
  ["latest", "to the end: skip everything"],
  ["time", "to a time"],
  ["offset", "to an offset"],
  ["by", "by a number of messages (negative: back)"],
];

function sendElsewhere(name, known, reload) {
  return dialog(`Reset ${name}`, (close) => {
    const topics = [...new Set((known?.queues ?? []).map((queue) => queue.topic))].filter((topic) => !topic.startsWith("%"));
    const topic = h("input", { type: "text", value: topics[0], required: true, list: "reset-topics", autofocus: true, spellcheck: "false" });
    const kind = h("select", { onchange: choose }, TARGETS.map(([value, text]) => h("option", { value }, text)));
    const time = h("input", { type: "datetime-local", step: 1, value: toInput(Date.now() - 3600_000) });
    const value = h("input", { type: "number", value: "0" });
    const queue = h("input", { type: "number", min: 0, placeholder: "all" });
    const timeLabel = h("label", null, "Time", time);
    const valueLabel = h("label", null, "Number", value);
    const result = h("div");
    let preview = null;
    function choose() {
      timeLabel.hidden = kind.value !== "time";
      valueLabel.hidden = kind.value !== "offset" && kind.value !== "by";
    }
    async function look(event) {
      event.preventDefault();
      fill(result, h("p", { class: "faint" }, "Looking…"));
      try {
        const number = kind.value === "time" ? fromInput(time.value) : Number(value.value);
        preview = await ask(api("groups", name, "reset"), { topic: topic.value.trim(), kind: kind.value, value: number, queue: queue.value });
        fill(result, previewView(preview, topic.value.trim()));
      } catch (error) {
        fill(result, h("p", { class: "problem", role: "alert" }, error.message));
      }
    }
    function previewView(resets, wanted) {
      const skipped = resets.reduce((sum, one) => sum + one.skipped, 0);
      const repeated = resets.reduce((sum, one) => sum + one.repeated, 0);
      const list = table({
        caption: "What the reset does",
        key: (one) => `${one.broker} ${one.queue}`,
        columns: [
          { title: "Broker group", cell: (one) => one.broker },
          { title: "Queue", numeric: true, cell: (one) => number(one.queue), value: (one) => one.queue },
          { title: "From", numeric: true, cell: (one) => number(one.from_offset), value: (one) => one.from_offset },
          { title: "To", numeric: true, cell: (one) => number(one.to_offset), value: (one) => one.to_offset },
          { title: "Skipped", numeric: true, cell: (one) => number(one.skipped), value: (one) => one.skipped },
          { title: "Repeated", numeric: true, cell: (one) => number(one.repeated), value: (one) => one.repeated },
        ],
      });
      list.update(resets);
      const button = session.writable && h("button", { type: "button", class: "danger", onclick: () => act(button, wanted) }, "Reset");
      return [
        h(
          "p",
          null,
          skipped ? [h("strong", null, count(skipped, "message")), " will not be read. "] : null,
          repeated ? [h("strong", null, count(repeated, "message")), " will be read again. "] : null,
          !skipped && !repeated && "Nothing is skipped or repeated.",
        ),
        list.element,
        session.writable ? h("div", { class: "buttons" }, button) : h("p", { class: "faint" }, "This console is read only: start it with --writable to do so."),
      ];
    }
    async function act(button, wanted) {
      button.disabled = true;
      try {
        await order(api("groups", name, "reset"), {
          topic: wanted,
          queues: preview.map((one) => ({ broker: one.broker, queue: one.queue, from_offset: one.from_offset, to_offset: one.to_offset })),
        });
        tellDone(`${name} goes on in ${wanted} where the preview said; its members follow within seconds.`);
        close(true);
        reload();
      } catch (error) {
        fill(result, h("p", { class: "problem", role: "alert" }, error.message));
      }
    }
    choose();
    return h(
      "form",
      { class: "stack", onsubmit: look },
      h(
        "div",
        { class: "row" },
        h("label", null, "Topic", topic, h("datalist", { id: "reset-topics" }, topics.map((one) => h("option", { value: one })))),
        h("label", null, "Where to", kind),
        timeLabel,
        valueLabel,
        h("label", null, "Queue", queue),
      ),
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close() }, "Close"), h("button", { type: "submit", class: "primary" }, "Preview")),
      result,
    );
  });
}

async function remove(name) {
  const members = h("input", { type: "checkbox" });
  const letters = h("input", { type: "checkbox" });
  const done = await confirm({
    title: `Delete ${name}`,
    text: [
      h("p", null, "The consumer group is deleted with its offsets and the messages that wait for its retries. This cannot be undone."),
      h("label", { class: "check" }, members, "even if it has members now"),
      h("label", { class: "check" }, letters, "its dead letters, too"),
    ],
    verb: "Delete",
    danger: true,
    typed: name,
    act: () => order(api("groups", name, "delete"), { while_in_use: members.checked, dead_letters: letters.checked }),
  });
  if (done) {
    tellDone(`Consumer group ${name} is deleted.`);
    location.hash = href("groups");
  }
}
