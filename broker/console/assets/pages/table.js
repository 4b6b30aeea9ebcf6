// The pages, in the order of the list beside them. `key` goes there behind a g.

import * as charts from "./charts.js";
import * as cluster from "./cluster.js";

export const PAGES = [
  { name: "cluster", title: "Cluster", key: "c", show: cluster.show },
  { name: "charts", title: "Charts", key: "h", show: charts.show },
];
