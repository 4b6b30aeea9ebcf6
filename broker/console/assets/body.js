// Bodies of messages: text where they are text, JSON set out if they are that, else bytes.

import { h } from "./dom.js";
import { number } from "./format.js";

const strict = new TextDecoder("utf-8", { fatal: true });

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** The text that bytes are in UTF-8, null if they are none. If they were cut, the end may lie within a character. */
function textOf(bytes, cut) {
  for (let end = bytes.length; end >= Math.max(0, bytes.length - (cut ? 3 : 0)); end -= 1) {
    try {
      const text = strict.decode(bytes.subarray(0, end));
      // Control characters are no text, except tabs and ends of lines.
      return /[\u0000-\u0008\u000e-\u001f]/.test(text) ? null : text;
    } catch {
      // The cut may be within a character: try with one byte less.
    }
  }
  return null;
}

/** The beginning of a body, on a line. */
export function preview({ message, body_bytes: size }) {
  if (message.body === null) return h("em", { class: "faint" }, message.damage ?? "not told");
  const bytes = bytesOf(message.body);
  const text = textOf(bytes, bytes.length < size);
  const rest = bytes.length < size ? "…" : "";
  if (text === null) return h("code", { class: "faint" }, hex(bytes.subarray(0, 24)), "…");
  return h("span", { class: "preview" }, text.replace(/\s+/g, " ") + rest);
}

/** A whole body, as far as it was told. */
export function bodyView({ message, body_bytes: size }) {
  if (message.body === null) return h("p", { class: "problem" }, `It cannot be read: ${message.damage}`);
  const bytes = bytesOf(message.body);
  const isCut = bytes.length < size;
  const text = textOf(bytes, isCut);
  const note = isCut && h("p", { class: "faint" }, `The first ${number(bytes.length)} of ${number(size)} bytes.`);
  if (text === null) return [h("pre", { class: "body", tabindex: 0 }, dump(bytes.subarray(0, 4096))), note];
  const json = isCut ? null : asJson(text);
  if (json === null) return [h("pre", { class: "body", tabindex: 0 }, text), note];
  const shown = h("pre", { class: "body", tabindex: 0 }, json);
  const asSent = h("input", { type: "checkbox", onchange: () => (shown.textContent = asSent.checked ? text : json) });
  return [shown, h("label", { class: "check" }, asSent, "as it was sent")];
}

function asJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    const value = JSON.parse(text);
    const set = JSON.stringify(value, null, 2);
    // Numbers that a browser cannot hold would be shown as others.
    return JSON.stringify(value) === text.replace(/("(?:[^"\\]|\\.)*")|\s+/g, "$1") ? set : null;
  } catch {
    return null;
  }
}

function hex(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

function dump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const line = bytes.subarray(at, at + 16);
    const signs = [...line].map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex(line).padEnd(47)}  ${signs}`);
  }
  return lines.join("\n");
}
