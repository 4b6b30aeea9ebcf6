// Elements. Whatever comes from outside becomes text: nothing here parses markup.

/**
 * An element with its attributes and children. An attribute that is a function listens to the event of that name
 * (onclick), one that is true is set, one that is false, null or undefined is left out. Children are elements, texts,
 * numbers, or lists of them; null and false are left out.
 */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value ?? "";
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  put(element, children);
  return element;
}

/** Give an element these children instead of those that it has. */
export function fill(element, ...children) {
  element.replaceChildren();
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** A link to one of our pages; each part of the path is escaped. */
export function href(...parts) {
  let query = "";
  if (typeof parts.at(-1) === "object") {
    const given = Object.entries(parts.pop()).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    query = given.length ? `?${new URLSearchParams(given.map(([key, value]) => [key, String(value)]))}` : "";
  }
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${query}`;
}

/** A short word on a coloured ground; the colour says how good or bad it is: good, warn, bad or plain. */
export function pill(text, kind = "plain") {
  return h("span", { class: `pill ${kind}` }, text);
}

/** The head of a page: its title on the left, what can be done there on the right. */
export function head(title, right) {
  return h("div", { class: "row between" }, h("h1", null, title), right);
}

/** What a `dl` of the class "facts" shows: pairs of a name and a value. */
export function facts(pairs) {
  return pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)));
}

/** A box to tick, with its text; `change` is called with whether it is ticked. */
export function tick(text, change) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", onchange: (event) => change(event.target.checked) }), text);
}
