// Dead letters: which consumer groups have them; those of one looked at, sent again, deleted.

import { api, ask, order, session, tellDone } from "../api.js";
import { confirm, dialog } from "../dialog.js";
import { facts, fill, h, head, href, pill } from "../dom.js";
import { DASH, count, moment, number } from "../format.js";
import { poll } from "../poll.js";
import { table } from "../table.js";
import { messageTable } from "./messages.js";

const AGAIN_MS = 5000;
const PORTION_S = 2;
const SHOWN = 100;

export function show(view) {
  return view.parts.length ? showOne(view, view.parts[0]) : showAll(view);
}

function showAll({ root, signal, fail }) {
  const list = table({
    caption: "Consumer groups with dead letters",
    filter: true,
    empty: "No consumer group has dead letters.",
    key: (letters) => letters.group,
    columns: [
      { title: "Consumer group", cell: (letters) => h("a", { href: href("dead-letters", letters.group) }, letters.group), value: (letters) => letters.group },
      { title: "Kept", numeric: true, cell: (letters) => number(letters.kept), value: (letters) => letters.kept },
      { title: "Not sent again", numeric: true, cell: (letters) => (letters.waiting ? pill(number(letters.waiting), "warn") : "0"), value: (letters) => letters.waiting },
      { title: "Newest", cell: (letters) => moment(letters.newest_ms), value: (letters) => letters.newest_ms },
    ],
  });
  fill(
    root,
    h("h1", null, "Dead letters"),
    h("section", null, h("p", { class: "faint" }, "Messages that a consumer group has sent back more often than it may."), list.element),
  );
  poll(async () => list.update(await ask("/api/dead-letters", null, signal)), AGAIN_MS, signal, fail);
}

function showOne({ root, signal, fail, reload }, group) {
  const figures = h("dl", { class: "facts" });
  const buttons = h("div", { class: "row" });
  const list = messageTable("Dead letters", "It has none.", [
    { title: "Came from", cell: ({ message }) => message.properties.DLQ_ORIGIN_TOPIC ?? message.properties.RETRY_TOPIC ?? DASH },
  ]);
  fill(
    root,
    head(["Dead letters of ", h("a", { href: href("groups", group) }, group)], buttons),
    h("section", null, figures),
    h("section", null, h("h2", null, "The newest, at most ", number(SHOWN)), list.element),
  );
  poll(async () => {
    const letters = await ask(api("dead-letters", group), null, signal);
    fill(
      figures,
      facts([["Kept", number(letters.kept)], ["Not sent again", number(letters.waiting)], ["Newest", moment(letters.newest_ms)]]),
    );
    if (buttons.dataset.state !== `${letters.kept} ${letters.waiting}`) {
      buttons.dataset.state = `${letters.kept} ${letters.waiting}`;
      fill(
        buttons,
        session.writable && letters.kept > 0 && h("button", { type: "button", class: "primary", onclick: () => sendAgain(group, letters, reload) }, "Send again…"),
        session.writable && letters.kept > 0 && h("button", { type: "button", class: "danger", onclick: () => purge(group, letters, reload) }, "Delete all"),
      );
    }
    if (letters.kept) {
      const found = await ask("/api/messages", { topic: `%DLQ%${group}`, limit: SHOWN }, signal);
      list.update(found.reverse());
    } else list.update([]);
  }, AGAIN_MS, signal, fail);
}

function sendAgain(group, letters, reload) {
  return dialog(`Send the dead letters of ${group} again`, (close) => {
    let going = false;
    let stopped = false;
    const rate = h("input", { type: "number", min: 0.1, max: 100000, step: "any", value: "100", required: true, autofocus: true });
    const limit = h("input", { type: "number", min: 1, value: String(letters.waiting || letters.kept), required: true });
    const again = h("input", { type: "checkbox", checked: letters.waiting === 0, onchange: () => (limit.value = again.checked ? letters.kept : letters.waiting) });
    const bar = h("progress", { max: 1, value: 0, hidden: true });
    const text = h("p", { role: "status" });
    const button = h("button", { type: "submit", class: "primary" }, "Send again");
    const stop = h("button", { type: "button", onclick: () => (going ? (stopped = true) : close(true)) }, "Close");
    async function submit(event) {
      event.preventDefault();
      if (going) return;
      going = true;
      stopped = false;
      button.disabled = true;
      stop.textContent = "Stop";
      bar.hidden = false;
      const wanted = Number(limit.value);
      const perSecond = Number(rate.value);
      let sent = 0;
      let passedOver = 0;
      let isFirst = true;
      try {
        // In orders of some seconds each: once the page is closed, nothing more is sent.
        while (sent + passedOver < wanted && !stopped) {
          const portion = Math.max(1, Math.min(wanted - sent - passedOver, Math.floor(perSecond * PORTION_S)));
          const done = await order(api("dead-letters", group, "redrive"), { limit: portion, rate_per_s: perSecond, again: again.checked && isFirst });
          isFirst = false;
          sent += done.sent;
          passedOver += done.passed_over;
          bar.value = (sent + passedOver) / wanted;
          text.textContent = `${count(sent, "message")} sent again, ${number(done.left)} left`;
          if (done.sent + done.passed_over === 0 || done.left === 0) break;
        }
        text.textContent = `${count(sent, "message")} sent again${passedOver ? `, ${number(passedOver)} cannot be sent` : ""}${stopped ? ", then stopped" : ""}.`;
        tellDone(text.textContent);
        reload();
      } catch (error) {
        text.textContent = `${count(sent, "message")} sent again, then: ${error.message}`;
      } finally {
        going = false;
        stop.textContent = "Close";
        button.disabled = false;
      }
    }
    return h(
      "form",
      { class: "stack", onsubmit: submit },
      h("p", null, "They go to this consumer group alone, as retries; other consumer groups of their topics do not get them again."),
      h("div", { class: "row" }, h("label", null, "Messages a second", rate), h("label", null, "At most", limit)),
      h("label", { class: "check" }, again, "also those that were sent again before"),
      bar,
      text,
      h("div", { class: "buttons" }, stop, button),
    );
  });
}

async function purge(group, letters, reload) {
  const done = await confirm({
    title: `Delete the dead letters of ${group}`,
    text: h("p", null, `${count(letters.kept, "message")} will be gone for good, ${number(letters.waiting)} of which were not sent again.`),
    verb: "Delete",
    danger: true,
    typed: group,
    act: () => order(api("dead-letters", group, "purge")),
  });
  if (done) {
    tellDone("The dead letters are deleted.");
    reload();
  }
}
