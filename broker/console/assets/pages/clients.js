// The clients that are connected.

import { ask } from "../api.js";
import { fill, h, href, pill } from "../dom.js";
import { count } from "../format.js";
import { poll } from "../poll.js";
import { table } from "../table.js";

const AGAIN_MS = 5000;

export function show({ root, signal, fail }) {
  const note = h("p", { class: "faint" });
  const list = table({
    caption: "Clients",
    filter: true,
    empty: "No client announces a consumer or producer group.",
    key: (client) => `${client.role} ${client.group} ${client.client_id}`,
    columns: [
      { title: "Client", cell: (client) => h("code", null, client.client_id), value: (client) => client.client_id },
      { title: "Role", cell: (client) => pill(client.role), value: (client) => client.role },
      { title: "Group", cell: (client) => (client.role === "consumer" ? h("a", { href: href("groups", client.group) }, client.group) : client.group), value: (client) => client.group },
      { title: "Address", cell: (client) => h("code", null, client.address), value: (client) => client.address },
      { title: "Language", cell: (client) => client.language },
      { title: "Version", numeric: true, cell: (client) => client.version, value: (client) => client.version },
      { title: "Broker groups", cell: (client) => client.brokers.join(", ") },
    ],
  });
  fill(root, h("h1", null, "Clients"), h("section", null, note, list.element));
  poll(async () => {
    const clients = await ask("/api/clients", null, signal);
    const ids = new Set(clients.map((client) => client.client_id));
    note.textContent = `${count(ids.size, "client")} in ${count(new Set(clients.map((client) => client.role + client.group)).size, "consumer or producer group")}, a line for each that a client is in`;
    list.update(clients);
  }, AGAIN_MS, signal, fail);
}
