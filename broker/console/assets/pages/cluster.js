// Health of the groups and their nodes, live, and what has changed since the console was started.

import { ask, order, session, tellDone } from "../api.js";
import { chart, columnsOf } from "../chart.js";
import { confirm } from "../dialog.js";
import { facts, fill, h, pill } from "../dom.js";
import { DASH, count, duration, moment, number, part, rate, size } from "../format.js";
import { watch } from "../live.js";
import { poll } from "../poll.js";
import { table } from "../table.js";

const DOCTOR_MS = 15000;
const SEVERITIES = { fault: "bad", warning: "warn", note: "plain" };
const ROLES = { leader: "good", follower: "plain", learner: "plain", candidate: "warn", "pre-candidate": "warn", outside: "warn" };

export function show({ root, signal }) {
  const groups = h("div");
  const history = h("ol", { class: "history" });
  const since = h("span", { class: "faint" });
  const findings = h("div", null, h("p", { class: "faint" }, "Looking…"));
  const failure = h("p", { class: "problem", hidden: true });
  const views = new Map();
  fill(
    root,
    h("h1", null, "Cluster"),
    failure,
    groups,
    h("section", null, h("h2", null, "Elections and nodes ", since), history),
    h("section", null, h("h2", null, "Doctor"), findings),
  );
  poll(async () => {
    const diagnosis = await ask("/api/doctor", null, signal);
    fill(findings, diagnosisView(diagnosis));
  }, DOCTOR_MS, signal, (error) => fill(findings, h("p", { class: "faint" }, error.message)));

  watch(({ snapshot, points, changes, sinceMs }) => {
    failure.hidden = !snapshot.failure && snapshot.groups.length > 0;
    failure.textContent = snapshot.failure || "No broker is registered with the name server.";
    const names = new Set();
    for (const group of snapshot.groups) {
      names.add(group.name);
      if (!views.has(group.name)) {
        views.set(group.name, groupView(group.name, signal));
        groups.append(views.get(group.name).element);
      }
      views.get(group.name).update(group, points[group.name] ?? []);
    }
    for (const [name, view] of views) {
      if (!names.has(name)) {
        view.element.remove();
        views.delete(name);
      }
    }
    since.textContent = `seen since ${moment(sinceMs)}, leaders before that as the nodes remember them`;
    if (history.dataset.last !== String(changes.at(-1)?.number)) {
      history.dataset.last = String(changes.at(-1)?.number);
      fill(history, changes.slice().reverse().map((change) => changeView(change, snapshot.groups.length > 1)));
    }
  }, signal);
}

function groupView(name, signal) {
  const title = h("h2");
  const figures = h("dl", { class: "facts" });
  const nodes = table({
    caption: "Nodes",
    key: (node) => node.node,
    rowClass: (node) => (node.error === null ? null : "down"),
    columns: [
      { title: "Node", cell: (node) => [h("span", { class: `dot ${node.error === null ? "good" : "bad"}` }), node.node] , value: (node) => node.node },
      { title: "Role", cell: roleView, value: (node) => node.role ?? "" },
      { title: "Address", cell: (node) => h("code", null, node.address || DASH), value: (node) => node.address },
      { title: "Term", numeric: true, cell: (node) => number(node.term), value: (node) => node.term },
      { title: "Committed", numeric: true, cell: (node) => number(node.commit_index), value: (node) => node.commit_index },
      { title: "Applied", numeric: true, cell: (node) => number(node.applied_index), value: (node) => node.applied_index },
      { title: "Lag", numeric: true, cell: (node) => number(node.lag), value: (node) => node.lag },
      { title: "Log", numeric: true, cell: (node) => size(node.log_bytes), value: (node) => node.log_bytes },
      { title: "Disk", numeric: true, cell: (node) => part(node.disk_used), value: (node) => node.disk_used },
      { title: "Started", cell: (node) => moment(node.started_ms), value: (node) => node.started_ms },
      { title: "Release", cell: (node) => node.release || DASH },
      ...(session.writable
        ? [{ title: "", cell: (node) => node.role === "follower" && h("button", { type: "button", class: "link", onclick: () => transfer(name, node.node) }, "make it lead") }]
        : []),
    ],
  });
  const flow = chart({
    title: "Messages a second",
    signal,
    series: [
      { label: "stored", color: "--accent", value: rate, fill: true },
      { label: "delivered", color: "--second", value: rate },
    ],
  });
  const lag = chart({
    title: "Entries that the slowest node has yet to apply",
    signal,
    series: [{ label: "lag", color: "--third", value: number, fill: true }],
  });
  const element = h(
    "section",
    { class: "group" },
    title,
    figures,
    nodes.element,
    h("div", { class: "charts" }, flow.element, lag.element),
  );
  let shown = "";
  return {
    element,
    update(group, points) {
      const now = points.at(-1);
      const answering = group.nodes.filter((node) => node.error === null).length;
      const state = JSON.stringify([group.leader, group.term, answering, group.nodes.length, now]);
      if (state !== shown) {
        shown = state;
        const [text, kind] =
          group.leader === null ? ["no leader", "bad"] : answering < group.nodes.length ? ["serves", "warn"] : ["serves", "good"];
        fill(title, h("code", null, group.name), " ", pill(text, kind), h("span", { class: "faint" }, ` ${group.cluster}`));
        fill(
          figures,
          facts([
            ["Leader", group.leader ?? "none"],
            ["Term", number(group.term)],
            ["Nodes", `${answering} of ${group.nodes.length}`],
            ["Stored", rate(now?.[1])],
            ["Delivered", rate(now?.[2])],
            ["Lag", number(now?.[3])],
          ]),
        );
      }
      nodes.update(group.nodes);
      const columns = columnsOf(points);
      flow.update(columns.slice(0, 3));
      lag.update([columns[0], columns[3]]);
    },
  };
}

function diagnosisView({ findings, checks }) {
  if (findings.length === 0) return h("p", null, pill("nothing found", "good"), h("span", { class: "faint" }, ` in ${count(checks.length, "check")}`));
  return h(
    "ul",
    { class: "plainlist" },
    findings.map((finding) =>
      h("li", null, pill(finding.severity, SEVERITIES[finding.severity]), " ", h("strong", null, finding.about), ` ${finding.what}`, h("div", { class: "faint" }, finding.advice)),
    ),
  );
}

async function transfer(group, node) {
  const done = await confirm({
    title: `Have ${node} lead ${group}`,
    text: h("p", null, "The leader hands over once the other node has its whole log. Clients notice a pause of milliseconds."),
    verb: "Hand over",
    act: () => order("/api/cluster/transfer", { group, node }),
  });
  if (done) tellDone(`${node} leads ${group}.`);
}

function roleView(node) {
  if (node.error !== null) {
    const heard = node.last_contact_ms === null ? "" : `, heard ${duration(node.last_contact_ms)} ago`;
    return [pill("silent", "bad"), h("span", { class: "reason", title: node.error }, `${node.error.replace(`${node.address}: `, "")}${heard}`)];
  }
  return [
    pill(node.role, ROLES[node.role] ?? "plain"),
    node.role === "leader" && !node.serving && pill("not serving yet", "warn"),
    node.recovering !== null && pill(`recovering: ${node.recovering}`, "warn"),
    node.disk_full && pill("disk full", "bad"),
    node.recovered.length > 0 && h("span", { title: node.recovered.join("\n") }, pill(count(node.recovered.length, "repair"), "warn")),
  ];
}

const TEXTS = {
  leader: (change) =>
    `${change.node} leads${change.term === null ? "" : ` in term ${number(change.term)}`}` +
    (change.without_ms === null ? "" : `, after ${duration(change.without_ms)} without a leader`),
  "no leader": (change) => (change.node === null ? "no leader" : `no leader: ${change.node} led before`),
  down: (change) => `${change.node} is silent`,
  back: (change) => `${change.node} answers again`,
  joined: (change) => `${change.node} is a member`,
  left: (change) => `${change.node} is no member any more`,
};
const KINDS = { leader: "good", "no leader": "bad", down: "bad", back: "good", joined: "plain", left: "warn" };

function changeView(change, isOneOfSeveral) {
  return h(
    "li",
    { class: KINDS[change.kind] },
    h("time", { datetime: new Date(change.at_ms).toISOString() }, moment(change.at_ms)),
    h("span", null, isOneOfSeveral && `${change.group}: `, TEXTS[change.kind](change)),
  );
}
