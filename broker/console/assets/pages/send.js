// A test message is sent.

import { ask, order, tellDone } from "../api.js";
import { fill, h, href } from "../dom.js";
import { fromInput } from "../format.js";

export function show({ root, signal, query }) {
  const topic = h("input", { type: "text", value: query.topic, required: true, list: "send-topics", spellcheck: "false", autofocus: true });
  const names = h("datalist", { id: "send-topics" });
  const body = h("textarea", { rows: 8, required: true, spellcheck: "false" });
  body.value = "hello";
  const tag = h("input", { type: "text" });
  const keys = h("input", { type: "text", placeholder: "with spaces between" });
  const orderBy = h("input", { type: "text", placeholder: "any queue" });
  const delay = h(
    "select",
    null,
    h("option", { value: "" }, "at once"),
    ["1 s", "5 s", "10 s", "30 s", "1 min", "2 min", "3 min", "4 min", "5 min", "6 min", "7 min", "8 min", "9 min", "10 min", "20 min", "30 min", "1 h", "2 h"].map(
      (text, index) => h("option", { value: index + 1 }, `level ${index + 1} (${text} by default)`),
    ),
    h("option", { value: "at" }, "at a time"),
  );
  const at = h("input", { type: "datetime-local", step: 1 });
  const atLabel = h("label", { hidden: true }, "Deliver at", at);
  delay.addEventListener("change", () => (atLabel.hidden = delay.value !== "at"));
  const properties = h("textarea", { rows: 3, spellcheck: "false", placeholder: "name = value, one on a line" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const sent = h("ol", { class: "history" });
  const nothing = h("p", { class: "faint" }, "Nothing yet.");
  const button = h("button", { type: "submit", class: "primary" }, "Send");

  async function submit(event) {
    event.preventDefault();
    problem.hidden = true;
    button.disabled = true;
    try {
      const result = await order("/api/messages/send", {
        topic: topic.value.trim(),
        body: body.value,
        tags: tag.value.trim() || null,
        keys: keys.value.split(/\s+/).filter(Boolean),
        properties: readProperties(properties.value),
        delay_level: delay.value === "at" ? 0 : Number(delay.value),
        deliver_at_ms: delay.value === "at" ? fromInput(at.value) : null,
        order_by: orderBy.value || null,
      });
      const waits = delay.value !== "";
      sent.prepend(
        h(
          "li",
          { class: "good" },
          h("span", null, waits ? "accepted, and waits: " : "stored: "),
          waits
            ? h("a", { href: href("messages", { topic: result.topic, by: "id", id: result.message_id }) }, result.message_id)
            : h(
                "a",
                { href: href("messages", result.topic, result.broker, String(result.queue), String(result.offset)) },
                `${result.topic}, ${result.broker}, queue ${result.queue}, offset ${result.offset}`,
              ),
        ),
      );
      nothing.remove();
      tellDone("The message is stored.");
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      button.disabled = false;
    }
  }

  fill(
    root,
    h("h1", null, "Send a message"),
    h(
      "section",
      null,
      h(
        "form",
        { class: "stack", onsubmit: submit },
        h("div", { class: "row" }, h("label", null, "Topic", topic, names), h("label", null, "Tag", tag), h("label", null, "Keys", keys), h("label", null, "Order by", orderBy)),
        h("label", null, "Body", body),
        h("div", { class: "row" }, h("label", null, "Deliver", delay), atLabel),
        h("label", null, "Properties", properties),
        problem,
        h("div", { class: "buttons" }, button),
      ),
    ),
    h("section", null, h("h2", null, "Sent from here"), nothing, sent),
  );
  ask("/api/topics", null, signal)
    .then((topics) => fill(names, topics.filter((one) => one.kind === "topic").map((one) => h("option", { value: one.name }))))
    .catch(() => {});
  (query.topic ? body : topic).focus();
}

function readProperties(text) {
  const properties = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`A property is name = value: ${line}`);
    properties[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return properties;
}
