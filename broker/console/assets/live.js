// The live stream: what the server tells of the cluster each second, kept for whichever page looks at it.
//
// A page that nobody sees has no stream: browsers have six connections for all their pages of one server.

import { loadSession, session } from "./api.js";

const POINTS_MAX = 900;
const CHANGES_MAX = 300;

/** The newest snapshot, the figures by group, the changes from old to new; `connected` is false while none come. */
export const live = { snapshot: null, points: {}, changes: [], sinceMs: null, connected: false };

const listeners = new Set();
let source = null;

/** Call the listener with each moment until the signal aborts, and now if there is one. */
export function watch(listener, signal) {
  listeners.add(listener);
  signal?.addEventListener("abort", () => listeners.delete(listener));
  if (live.snapshot !== null) listener(live);
}

function tell() {
  for (const listener of [...listeners]) listener(live);
}

/** Begin, or begin anew, as after signing in. */
export function restart() {
  source?.close();
  source = null;
  if (!document.hidden) open();
}

function open() {
  source = new EventSource("/api/live");
  source.addEventListener("history", (event) => {
    const { account, history } = JSON.parse(event.data);
    // The session ended meanwhile, or began.
    if (session !== null && session.account !== account) loadSession().catch(() => {});
    Object.assign(live, { points: history.points, changes: [], sinceMs: history.since_ms });
  });
  source.addEventListener("moment", (event) => {
    const moment = JSON.parse(event.data);
    live.connected = true;
    live.snapshot = moment.snapshot;
    live.changes = [...live.changes, ...moment.changes].slice(-CHANGES_MAX);
    for (const [group, point] of Object.entries(moment.points)) {
      const points = (live.points[group] ??= []);
      if (points.at(-1)?.[0] !== point[0]) points.push(point);
      if (points.length > POINTS_MAX) points.splice(0, points.length - POINTS_MAX);
    }
    tell();
  });
  source.addEventListener("error", () => {
    live.connected = false;
    tell();
    // The browser tries again by itself unless the server refused.
    if (source?.readyState === EventSource.CLOSED) {
      const closed = source;
      setTimeout(() => source === closed && restart(), 2000);
    }
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) {
    open();
  }
});
