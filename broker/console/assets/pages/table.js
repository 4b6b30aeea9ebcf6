// The pages, in the order of the list beside them. The keys g and then `key` lead there.

import * as accounts from "./accounts.js";
import * as charts from "./charts.js";
import * as clients from "./clients.js";
import * as cluster from "./cluster.js";
import * as deadLetters from "./dead_letters.js";
import * as groups from "./groups.js";
import * as messages from "./messages.js";
import * as reports from "./reports.js";
import * as send from "./send.js";
import * as settings from "./settings.js";
import * as topics from "./topics.js";
import * as waiting from "./waiting.js";

export const PAGES = [
  { name: "cluster", title: "Cluster", key: "c", show: cluster.show },
  { name: "topics", title: "Topics", key: "t", show: topics.show },
  { name: "messages", title: "Messages", key: "m", show: messages.show },
  { name: "groups", title: "Consumer groups", key: "g", show: groups.show },
  { name: "send", title: "Send", key: "s", show: send.show, hidden: (session) => !session?.writable },
  { name: "dead-letters", title: "Dead letters", key: "d", show: deadLetters.show },
  { name: "waiting", title: "Waiting", key: "w", show: waiting.show },
  { name: "clients", title: "Clients", key: "l", show: clients.show },
  { name: "settings", title: "Settings", key: "e", show: settings.show },
  { name: "accounts", title: "Accounts", key: "a", show: accounts.show, hidden: (session) => !session?.has_accounts },
  { name: "charts", title: "Charts", key: "h", show: charts.show },
  { name: "reports", title: "Reports", key: "r", show: reports.show, hidden: (session) => !session?.has_reports },
];
