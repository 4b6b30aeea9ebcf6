// Accounts: what each may do, and which servers go by them. Secrets are told to nobody.

import { ask } from "../api.js";
import { fill, h, pill } from "../dom.js";
import { DASH } from "../format.js";
import { table } from "../table.js";

const STATES = { "in force": "good", "other accounts": "bad", "other secrets": "bad", "no accounts": "warn", "does not tell": "plain" };

export async function show({ root, signal }) {
  const found = await ask("/api/accounts", null, signal);
  const accounts = table({
    caption: "Accounts",
    filter: true,
    empty: "None: nobody may do anything.",
    key: (account) => account.access_key,
    columns: [
      { title: "Account", cell: (account) => [h("code", null, account.access_key), account.admin && [" ", pill("administrator", "warn")]], value: (account) => account.access_key },
      { title: "Topics", wide: true, cell: (account) => rightsView(account.topics, account.admin ? "PUB|SUB" : account.default_topic), value: (account) => Object.keys(account.topics).join(" ") },
      { title: "Consumer groups", wide: true, cell: (account) => rightsView(account.groups, account.admin ? "PUB|SUB" : account.default_group), value: (account) => Object.keys(account.groups).join(" ") },
    ],
  });
  const servers = table({
    caption: "Servers",
    empty: "None.",
    key: (server) => server.address,
    columns: [
      { title: "Server", cell: (server) => server.server, value: (server) => server.server },
      { title: "Address", cell: (server) => h("code", null, server.address), value: (server) => server.address },
      { title: "Goes by these accounts", cell: (server) => pill(server.state, STATES[server.state]), value: (server) => server.state },
      { title: "", wide: true, cell: (server) => server.why || "" },
    ],
  });
  accounts.update(found.accounts);
  servers.update(found.servers);
  fill(
    root,
    h("h1", null, "Accounts"),
    h("section", null, h("p", { class: "faint" }, `In ${found.file}, without their secrets. `, h("code", null, "trivet acl"), " changes them."), accounts.element),
    h("section", null, h("h2", null, "In force"), servers.element),
  );
}

function rightsView(named, others) {
  const rights = Object.entries(named);
  const rest = others === "DENY" && rights.length ? null : h("span", { class: "faint" }, others === "DENY" ? DASH : `all ${rights.length ? "others " : ""}${others}`);
  return [rights.map(([name, granted], index) => [index > 0 && ", ", h("code", null, name), ` ${granted}`]), rights.length > 0 && rest && ", ", rest];
}
