// Messages: found by time, offset, key or id; one of them with its body, its properties and its way.

import { ask } from "../api.js";
import { facts, fill, h, head, href, pill } from "../dom.js";
import { DASH, count, fromInput, moment, number, size, toInput } from "../format.js";
import { table } from "../table.js";
import { bodyView, preview } from "../body.js";

const WAYS = [
  ["newest", "The newest"],
  ["time", "From a time on"],
  ["offset", "From an offset on"],
  ["key", "By key"],
  ["id", "By id"],
];

export function show(view) {
  return view.parts.length === 4 ? showOne(view) : showFinder(view);
}

function showFinder({ root, signal, fail, query }) {
  const by = WAYS.some(([name]) => name === query.by) ? query.by : "newest";
  const topic = h("input", { type: "text", value: query.topic, required: true, list: "topic-names", spellcheck: "false", "data-filter": true });
  const names = h("datalist", { id: "topic-names" });
  const fields = {
    since: h("input", { type: "datetime-local", step: 1, value: query.since ? toInput(Number(query.since)) : toInput(Date.now() - 3600_000) }),
    until: h("input", { type: "datetime-local", step: 1, value: query.until ? toInput(Number(query.until)) : "" }),
    broker: h("input", { type: "text", value: query.broker, placeholder: "all" }),
    queue: h("input", { type: "number", min: 0, value: query.queue, placeholder: "all" }),
    offset: h("input", { type: "number", min: 0, value: query.offset ?? "0" }),
    key: h("input", { type: "text", value: query.key }),
    id: h("input", { type: "text", value: query.id, size: 44, spellcheck: "false" }),
    limit: h("input", { type: "number", min: 1, max: 200, value: query.limit ?? "32" }),
  };
  const labels = {
    since: h("label", null, "From", fields.since),
    until: h("label", null, "Before", fields.until),
    broker: h("label", null, "Broker group", fields.broker),
    queue: h("label", null, "Queue", fields.queue),
    offset: h("label", null, "Offset", fields.offset),
    key: h("label", null, "Key", fields.key),
    id: h("label", null, "Id, the sender's or the broker's", fields.id),
    limit: h("label", null, "At most", fields.limit),
  };
  const wanted = {
    newest: ["broker", "queue", "limit"],
    time: ["since", "until", "broker", "queue", "limit"],
    offset: ["broker", "queue", "offset", "limit"],
    key: ["key", "limit"],
    id: ["id"],
  };
  const choice = h(
    "select",
    { onchange: choose, value: by },
    WAYS.map(([name, title]) => h("option", { value: name, selected: name === by }, title)),
  );
  function choose() {
    for (const [name, label] of Object.entries(labels)) label.hidden = !wanted[choice.value].includes(name);
  }
  const result = h("section", { hidden: true });
  fill(
    root,
    h("h1", null, "Messages"),
    h(
      "section",
      { class: "keep" },
      h(
        "form",
        {
          class: "row",
          onsubmit: (event) => {
            event.preventDefault();
            const given = { topic: topic.value.trim(), by: choice.value };
            for (const name of wanted[choice.value]) {
              given[name] = name === "since" || name === "until" ? fromInput(fields[name].value) : fields[name].value.trim();
            }
            const to = href("messages", given);
            if (location.hash === to) find();
            else location.hash = to;
          },
        },
        h("label", null, "Topic", topic, names),
        h("label", null, "Which", choice),
        Object.values(labels),
        h("button", { type: "submit", class: "primary" }, "Find"),
      ),
    ),
    result,
  );
  choose();
  ask("/api/topics", null, signal)
    .then((topics) => fill(names, topics.map((one) => h("option", { value: one.name }))))
    .catch(() => {});

  async function find() {
    const parameters = {
      newest: { broker: query.broker, queue: query.queue },
      time: { since_ms: query.since, until_ms: query.until, broker: query.broker, queue: query.queue },
      offset: { offset: query.offset, broker: query.broker, queue: query.queue },
      key: { key: query.key },
      id: { message_id: query.id },
    }[by];
    result.hidden = false;
    fill(result, h("p", { class: "faint" }, "Looking…"));
    try {
      const found = await ask("/api/messages", { topic: query.topic, limit: by === "id" ? null : query.limit, ...parameters }, signal);
      if (by === "newest") found.reverse();
      const list = messageTable("Messages", "No such message is kept.");
      list.update(found);
      fill(result, h("p", { class: "faint" }, `${number(found.length)} found${by === "newest" ? ", the newest first" : ""}`), list.element);
    } catch (error) {
      result.hidden = true;
      fail(error);
    }
  }
  if (query.topic) return find();
  topic.focus();
  return null;
}

/** A table of messages as the server shows them, each with a link to the whole of it. */
export function messageTable(caption, empty, more = []) {
  return table({
    caption,
    empty,
    key: ({ message }) => `${message.broker} ${message.topic} ${message.queue} ${message.offset}`,
    columns: [
      {
        title: "Stored",
        cell: ({ message }) => h("a", { href: placeOf(message) }, moment(message.stored_ms, true)),
        value: ({ message }) => message.stored_ms,
      },
      { title: "Broker group", cell: ({ message }) => message.broker },
      { title: "Queue", numeric: true, cell: ({ message }) => number(message.queue), value: ({ message }) => message.queue },
      { title: "Offset", numeric: true, cell: ({ message }) => number(message.offset), value: ({ message }) => message.offset },
      ...more,
      { title: "Tag", cell: ({ message }) => message.tags ?? DASH },
      { title: "Keys", cell: ({ message }) => message.keys.join(" ") || DASH },
      { title: "Size", numeric: true, cell: (shown) => size(shown.body_bytes), value: (shown) => shown.body_bytes },
      { title: "Body", wide: true, cell: preview, value: (shown) => shown.message.body ?? "" },
    ],
  });
}

function placeOf(message) {
  return href("messages", message.topic, message.broker, String(message.queue), String(message.offset));
}

async function showOne({ root, signal, parts, fail }) {
  const [topic, broker, queue, offset] = parts;
  const shown = await ask("/api/message", { topic, broker, queue, offset }, signal);
  const { message } = shown;
  const home = message.properties.REAL_TOPIC ?? message.properties.DLQ_ORIGIN_TOPIC ?? message.properties.RETRY_TOPIC ?? topic;
  const way = h("div", null, h("p", { class: "faint" }, "Looking…"));
  const figures = [
    ["Id", h("code", null, message.message_id)],
    ["Place", `${broker}, queue ${queue}, offset ${number(message.offset)}`],
    ["Stored", moment(message.stored_ms, true)],
    ["Sent", `${moment(message.born_ms, true)} by ${message.born_host}`],
    ["Tag", message.tags ?? DASH],
    ["Keys", message.keys.join(" ") || DASH],
    ["Retries", number(message.reconsume_times)],
    ["Size", `${size(shown.body_bytes)}, ${size(message.size)} with everything`],
    ["Broker's id", h("code", null, message.offset_message_id)],
  ];
  fill(
    root,
    head(
      ["Message ", h("code", null, number(message.offset)), " of ", h("a", { href: href("topics", topic) }, topic)],
      h(
        "div",
        { class: "row" },
        Number(offset) > 0 && h("a", { href: href("messages", topic, broker, queue, String(Number(offset) - 1)) }, "← before"),
        h("a", { href: href("messages", topic, broker, queue, String(Number(offset) + 1)) }, "after →"),
      ),
    ),
    h("section", null, h("dl", { class: "facts small" }, facts(figures))),
    h("section", null, h("h2", null, "Body"), bodyView(shown)),
    h("section", null, h("h2", null, "Its way"), way),
    h("section", null, h("h2", null, "Properties"), propertiesView(message.properties)),
  );
  try {
    fill(way, wayView(await ask("/api/way", { topic: home, message_id: message.message_id }, signal)));
  } catch (error) {
    if (error.name !== "AbortError") fill(way, h("p", { class: "faint" }, error.message));
  }
  return fail;
}

function propertiesView(properties) {
  const names = table({
    caption: "Properties",
    key: ([name]) => name,
    empty: "None.",
    columns: [
      { title: "Name", cell: ([name]) => h("code", null, name) },
      { title: "Value", wide: true, cell: ([, value]) => value },
    ],
  });
  names.update(Object.entries(properties).sort());
  return names.element;
}

const STEPS = {
  waits: (step) => ["waits", step.until_ms ? `until ${moment(step.until_ms)}` : step.group ? `for its retry by ${step.group}` : "for its time", "warn"],
  delivered: () => ["delivered", "its time has come", "good"],
  half: () => ["half", "until its producer decides", "warn"],
  "given up": () => ["given up", "its producer has not decided", "bad"],
  stored: () => ["stored", "", "good"],
  retried: (step) => ["retried", `by ${step.group}, ${number(step.times)} before`, "warn"],
  "dead letter": (step) => ["dead letter", `of ${step.group}`, "bad"],
};
const STATES = { consumed: "good", "not consumed": "warn", filtered: "plain", "not subscribed": "plain", broadcast: "plain" };

function wayView(way) {
  const steps = h(
    "ol",
    { class: "history" },
    way.steps.map((step) => {
      const [what, text, kind] = STEPS[step.what](step);
      return h(
        "li",
        { class: kind },
        h("time", null, moment(step.at_ms, true)),
        h("span", null, pill(what, kind), ` ${text} `, h("a", { href: placeOf(step), class: "faint" }, `${step.topic}, queue ${step.queue}, offset ${number(step.offset)}`)),
      );
    }),
  );
  return [
    steps,
    way.groups.length
      ? h(
          "ul",
          { class: "plainlist" },
          way.groups.map((group) =>
            h("li", null, h("a", { href: href("groups", group.group) }, group.group), " ", pill(group.state, STATES[group.state]), h("span", { class: "faint" }, ` position ${number(group.position)}, ${count(group.members, "member")}`)),
          ),
        )
      : h("p", { class: "faint" }, "No consumer group has consumed its topic."),
  ];
}
