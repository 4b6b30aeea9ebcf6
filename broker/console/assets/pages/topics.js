// Topics: what they keep and how fast they grow; one of them with its queues and consumers.

import { api, ask, order, session, tellDone } from "../api.js";
import { confirm } from "../dialog.js";
import { facts, fill, h, head, href, pill, tick } from "../dom.js";
import { DASH, count, moment, number, rate, size } from "../format.js";
import { poll } from "../poll.js";
import { table } from "../table.js";

const AGAIN_MS = 4000;

export function show(view) {
  return view.parts.length ? showOne(view, view.parts[0]) : showAll(view);
}

function showAll({ root, signal, fail }) {
  let withSystem = false;
  let before = null;
  let topics = null;
  const list = table({
    caption: "Topics",
    filter: true,
    empty: "There are no topics yet. A first message creates one, if the brokers' settings allow it; so does “New topic”.",
    key: (topic) => topic.name,
    columns: [
      { title: "Topic", cell: (topic) => h("a", { href: href("topics", topic.name) }, topic.name), value: (topic) => topic.name },
      { title: "Kind", cell: (topic) => topic.kind },
      { title: "Queues", numeric: true, cell: (topic) => number(topic.queues), value: (topic) => topic.queues },
      { title: "Messages kept", numeric: true, cell: (topic) => number(topic.kept), value: (topic) => topic.kept },
      { title: "Stored in all", numeric: true, cell: (topic) => number(topic.end), value: (topic) => topic.end },
      { title: "Rate", numeric: true, cell: (topic) => rate(topic.rate), value: (topic) => topic.rate },
      { title: "Newest", cell: (topic) => moment(topic.newest_ms), value: (topic) => topic.newest_ms },
    ],
  });
  const draw = () => topics && list.update(topics.filter((topic) => withSystem || topic.kind === "topic"));
  fill(
    root,
    head(
      "Topics",
      h(
        "div",
        { class: "row" },
        tick("with retries, dead letters and the brokers' own", (ticked) => ((withSystem = ticked), draw())),
        session.writable && h("button", { type: "button", onclick: create }, "New topic"),
      ),
    ),
    h("section", null, list.element),
  );
  poll(async () => {
    const at = performance.now();
    const found = await ask("/api/topics", null, signal);
    const seconds = before === null ? 0 : (at - before.at) / 1000;
    topics = found.map((topic) => {
      const end = before?.ends.get(topic.name);
      const grown = end === undefined || topic.end === null ? null : Math.max(0, topic.end - end) / seconds;
      return { ...topic, rate: grown };
    });
    before = { at, ends: new Map(found.map((topic) => [topic.name, topic.end])) };
    draw();
  }, AGAIN_MS, signal, fail);
}

async function create() {
  const name = h("input", { type: "text", required: true, maxlength: 127, pattern: "[%\\|a-zA-Z0-9_\\-]+", autofocus: true, spellcheck: "false" });
  const queues = h("input", { type: "number", min: 1, max: 1024, value: "8", required: true });
  const done = await confirm({
    title: "New topic",
    text: [h("label", null, "Name", name), h("label", null, "Queues in each broker group", queues)],
    verb: "Create",
    act: () => order(api("topics", name.value, "create"), { queues: Number(queues.value) }),
  });
  if (done) {
    tellDone(`Topic ${name.value} is there.`);
    location.hash = href("topics", name.value);
  }
}

function showOne({ root, signal, fail, reload }, name) {
  const figures = h("dl", { class: "facts" });
  const consumers = h("p");
  const brokers = h("div");
  fill(
    root,
    head(
      h("code", null, name),
      h(
        "div",
        { class: "row" },
        h("a", { href: href("messages", { topic: name }) }, "Messages"),
        session.writable && h("a", { href: href("send", { topic: name }) }, "Send a message"),
        session.writable && h("button", { type: "button", onclick: () => alter(name, reload) }, "Change"),
        session.writable && h("button", { type: "button", class: "danger", onclick: () => remove(name) }, "Delete"),
      ),
    ),
    h("section", null, figures, h("h2", null, "Consumer groups"), consumers),
    brokers,
  );
  const queueTables = new Map();
  poll(async () => {
    const topic = await ask(api("topics", name), null, signal);
    fill(
      figures,
      facts([
        ["Messages kept", number(topic.messages)],
        ["Rate", rate(topic.messages_per_s)],
        ["Bytes", `${size(topic.bytes_per_s)}/s`],
        ["Queues", number(topic.brokers.reduce((sum, at) => sum + at.queues.length, 0))],
      ]),
    );
    fill(
      consumers,
      topic.groups.length
        ? topic.groups.map((group, index) => [index > 0 && ", ", h("a", { href: href("groups", group) }, group)])
        : "Nobody has consumed it.",
    );
    for (const at of topic.brokers) {
      if (!queueTables.has(at.broker)) {
        const rights = h("p", { class: "faint" });
        const queues = table({
          caption: `Queues at ${at.broker}`,
          key: (queue) => queue.queue,
          columns: [
            { title: "Queue", numeric: true, cell: (queue) => number(queue.queue), value: (queue) => queue.queue },
            { title: "First offset", numeric: true, cell: (queue) => number(queue.begin), value: (queue) => queue.begin },
            { title: "End", numeric: true, cell: (queue) => number(queue.end), value: (queue) => queue.end },
            { title: "Messages kept", numeric: true, cell: (queue) => number(queue.end - queue.begin), value: (queue) => queue.end - queue.begin },
            { title: "Newest", cell: (queue) => moment(queue.newest_ms), value: (queue) => queue.newest_ms },
            {
              title: "",
              cell: (queue) =>
                queue.end > queue.begin
                  ? h(
                      "a",
                      {
                        href: href("messages", { topic: name, by: "offset", broker: at.broker, queue: queue.queue, offset: Math.max(queue.begin, queue.end - 32) }),
                      },
                      "last messages",
                    )
                  : DASH,
            },
          ],
        });
        brokers.append(h("section", null, h("h2", null, "At ", h("code", null, at.broker)), rights, queues.element));
        queueTables.set(at.broker, { queues, rights });
      }
      const { queues, rights } = queueTables.get(at.broker);
      queues.update(at.queues);
      fill(
        rights,
        at.may_write ? pill("may be written") : pill("not written", "warn"),
        at.may_read ? pill("may be read") : pill("not read", "warn"),
        at.ordered && pill("ordered"),
        ` written: ${count(at.write_queues, "queue")}, read: ${number(at.read_queues)}`,
        Object.entries(at.attributes).map(([key, value]) => `, ${key} = ${value}`),
      );
    }
  }, AGAIN_MS, signal, fail);
}

async function alter(name, reload) {
  const choice = (title) => {
    const select = h(
      "select",
      null,
      [["", "as it is"], ["true", "yes"], ["false", "no"]].map(([value, text]) => h("option", { value }, text)),
    );
    return { select, label: h("label", null, title, select), get value() { return select.value === "" ? null : select.value === "true"; } };
  };
  const queues = h("input", { type: "number", min: 1, max: 1024, placeholder: "as it is" });
  const read = choice("May be read");
  const write = choice("May be written");
  const done = await confirm({
    title: `Change ${name}`,
    text: [
      h("p", null, "In all broker groups that have it. With fewer queues than before, what the last ones keep is not read any more."),
      h("label", null, "Queues in each broker group", queues),
      read.label,
      write.label,
    ],
    verb: "Change",
    act: () =>
      order(api("topics", name, "alter"), {
        queues: queues.value === "" ? null : Number(queues.value),
        may_read: read.value,
        may_write: write.value,
      }),
  });
  if (done) {
    tellDone(`Changed at ${done.join(", ")}.`);
    reload();
  }
}

async function remove(name) {
  const anyway = h("input", { type: "checkbox" });
  const done = await confirm({
    title: `Delete ${name}`,
    text: [
      h("p", null, "The topic is deleted with all its messages and the consumer offsets in it. This cannot be undone."),
      h("label", { class: "check" }, anyway, "even if consumers subscribe to it now"),
    ],
    verb: "Delete",
    danger: true,
    typed: name,
    act: () => order(api("topics", name, "delete"), { while_in_use: anyway.checked }),
  });
  if (done) {
    tellDone(`Topic ${name} is deleted.`);
    location.hash = href("topics");
  }
}
