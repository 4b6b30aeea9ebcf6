// Questions and orders to the console's own server, and the session under which they are made.

import { notify } from "./dialog.js";

/** An error that the server answered, of one of the kinds that broker/console/answers.py names. */
export class Refused extends Error {
  constructor(text, kind, retryMayHelp) {
    super(text);
    this.kind = kind;
    this.retryMayHelp = retryMayHelp;
  }
}

/** Who has signed in, whether anything may be changed, and the token that orders show. */
export let session = null;
const listeners = new Set();

export function onSession(listener) {
  listeners.add(listener);
}

function keep(told) {
  session = told;
  for (const listener of listeners) listener(session);
  return session;
}

/** Whether the last order was not done in all broker groups. */
let inPart = false;

/** Broker groups that were missing from an answer, by the path that was asked for, since the page was opened. */
const missing = new Map();
const watchers = new Set();

/** Call `watcher` with the missing broker groups whenever an answer has changed them. */
export function onMissing(watcher) {
  watchers.add(watcher);
}

export function forgetMissing() {
  missing.clear();
  tellMissing();
}

function tellMissing() {
  const found = new Map([...missing.values()].flat().map((one) => [one.group, one]));
  for (const watcher of watchers) watcher([...found.values()]);
}

async function request(method, path, { query, body, signal } = {}) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const url = given.length ? `${path}?${new URLSearchParams(given.map(([key, value]) => [key, String(value)]))}` : path;
  const headers = { accept: "application/json" };
  if (method !== "GET") {
    headers["content-type"] = "application/json";
    headers["x-trivet-token"] = session?.token ?? "";
  }
  let response;
  try {
    response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the console's server does not answer", "unavailable", true);
  }
  let answer = null;
  try {
    answer = await response.json();
  } catch {
    if (response.ok) throw new Refused("the console's server gave no answer that can be read", "failed", true);
  }
  if (!response.ok) {
    throw new Refused(answer?.error ?? `HTTP ${response.status}`, answer?.kind ?? "failed", answer?.retry_may_help ?? false);
  }
  const without = JSON.parse(response.headers.get("x-trivet-missing") ?? "[]");
  if (method !== "GET") inPart = without.length > 0;
  if (method !== "GET" && without.length) {
    const why = without.map((one) => `${one.group}: ${one.why}`).join("; ");
    notify(`Done, but not in ${why}. Order it again when that answers.`, "bad");
  } else if (without.length || missing.has(path)) {
    if (without.length) missing.set(path, without);
    else missing.delete(path);
    tellMissing();
  }
  return answer;
}

/** Tell that the last order was carried out, unless broker groups are missing from it: these are told already. */
export function tellDone(text) {
  if (!inPart) notify(text);
}

/** A path of the interface, each of its parts escaped. */
export function api(...parts) {
  return `/api/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

export function ask(path, query, signal) {
  return request("GET", path, { query, signal });
}

/** Order a change. If the session was over, the server has refused the order unread: it is sent once more in a new one. */
export async function order(path, body) {
  try {
    return await request("POST", path, { body: body ?? {} });
  } catch (error) {
    if (error.kind !== "token") throw error;
    const before = session?.account ?? null;
    await loadSession();
    if ((session.account ?? null) !== before) throw new Refused("the session is over: sign in again", "sign in", false);
    return request("POST", path, { body: body ?? {} });
  }
}

export async function loadSession() {
  return keep(await request("GET", "/api/session"));
}

export async function signIn(accessKey, secretKey) {
  return keep(await request("POST", "/api/session", { body: { access_key: accessKey, secret_key: secretKey } }));
}

export async function signOut() {
  return keep(await request("DELETE", "/api/session"));
}
