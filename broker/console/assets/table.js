// Tables: sorted by a column, filtered by a text, updated in place so that nobody loses his place in one that lives.

import { fill, h } from "./dom.js";

/**
 * A table. `columns` are objects with `title`, `cell(row)` (text or element), and where they differ from the default
 * `value(row)` (what is sorted and filtered by; else the cell, if it is text), `numeric` (to the right) and `wide`
 * (may be wrapped). `key(row)` names a row. `empty` stands there while there are no rows, once `update` has said so.
 *
 * Returns an object with `element` and `update(rows)`.
 */
export function table({ caption, columns, key, empty = "Nothing.", filter = false, sort = null, rowClass = null }) {
  const body = h("tbody");
  const none = h("p", { class: "none" }, "Looking…");
  let rows = [];
  let isKnown = false;
  let order = sort === null ? null : { column: columns[sort.column], down: sort.down ?? false };
  let wanted = "";
  const shown = new Map();

  const heads = columns.map((column) =>
    h(
      "th",
      { scope: "col", class: column.numeric ? "numeric" : null },
      h("button", { type: "button", class: "sort", onclick: () => sortBy(column) }, column.title),
    ),
  );
  const input = h("input", {
    type: "search",
    class: "filter",
    placeholder: "Filter (/)",
    "aria-label": `Filter ${caption ?? ""}`,
    "data-filter": true,
    oninput: () => {
      wanted = input.value.trim().toLowerCase();
      draw();
    },
  });
  const element = h(
    "div",
    { class: "table" },
    filter && input,
    h(
      "div",
      { class: "scroll" },
      h("table", null, caption && h("caption", null, caption), h("thead", null, h("tr", null, heads)), body),
    ),
    none,
  );

  function sortBy(column) {
    order = { column, down: order?.column === column ? !order.down : Boolean(column.numeric) };
    draw();
  }

  function valueOf(column, row) {
    if (column.value) return column.value(row);
    const cell = column.cell(row);
    return cell instanceof Node ? cell.textContent : cell;
  }

  function draw() {
    let visible = rows;
    if (wanted) {
      visible = rows.filter((row) =>
        columns.some((column) => String(valueOf(column, row) ?? "").toLowerCase().includes(wanted)),
      );
    }
    if (order !== null) {
      const sign = order.down ? -1 : 1;
      visible = visible
        .map((row) => [valueOf(order.column, row), row])
        .sort(([one], [other]) => sign * compare(one, other))
        .map(([, row]) => row);
    }
    for (const [index, column] of columns.entries()) {
      const direction = order?.column === column ? (order.down ? "descending" : "ascending") : "none";
      heads[index].setAttribute("aria-sort", direction);
    }
    const keep = new Set();
    let before = null;
    for (const row of visible) {
      const name = key(row);
      keep.add(name);
      const line = lineOf(name, row);
      const place = before === null ? body.firstChild : before.nextSibling;
      if (place !== line) body.insertBefore(line, place);
      before = line;
    }
    for (const [name, { line }] of shown) {
      if (!keep.has(name)) {
        line.remove();
        shown.delete(name);
      }
    }
    none.hidden = visible.length > 0;
    none.textContent = !isKnown ? "Looking…" : wanted && rows.length ? "Nothing that fits the filter." : empty;
  }

  function lineOf(name, row) {
    const state = JSON.stringify(row);
    const found = shown.get(name);
    if (found?.state === state) return found.line;
    const line = found?.line ?? h("tr");
    // A link or button that has the focus in an updated row keeps it.
    const cell = line.contains(document.activeElement) ? document.activeElement.closest("td, th") : null;
    const index = cell === null ? -1 : [...line.children].indexOf(cell);
    fill(
      line,
      columns.map((column, place) =>
        h(
          place === 0 ? "th" : "td",
          { scope: place === 0 ? "row" : null, class: [column.numeric && "numeric", column.wide && "wide"].filter(Boolean).join(" ") || null },
          column.cell(row),
        ),
      ),
    );
    if (rowClass !== null) line.className = rowClass(row) ?? "";
    if (index >= 0) line.children[index]?.querySelector("a, button, input")?.focus();
    shown.set(name, { line, state });
    return line;
  }

  return {
    element,
    update(newRows) {
      rows = newRows;
      isKnown = true;
      draw();
    },
  };
}

function compare(one, other) {
  if (one === null || one === undefined) return other === null || other === undefined ? 0 : 1;
  if (other === null || other === undefined) return -1;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}
