// Tables that are sorted by clicking a column heading.
import { h, isNumber } from "./dom.js";

/**
 * A collapsible table. columns: {name, label, format, help}; name is a field of the rows, or a function of a row.
 * Numbers are right-aligned and sorted as numbers; missing values come last.
 */
export function table(summary, columns, rows) {
  const value = (row, column) => (typeof column.name === "function" ? column.name(row) : row[column.name]);
  const used = columns.filter((column) => rows.some((row) => value(row, column) !== null && value(row, column) !== undefined));
  const isRight = (column) => rows.every((row) => typeof (value(row, column) ?? 0) === "number");
  const body = h("tbody");
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) => h("tr", {}, used.map((column) =>
    h("td", { class: isRight(column) ? "number" : null }, (column.format ?? String)(value(row, column) ?? null))))));
  const headings = used.map((column) => h("th", { scope: "col", "aria-sort": "none", class: isRight(column) ? "number" : null },
    h("button", { type: "button", title: column.help ?? null, onclick: () => sort(column) }, column.label)));
  const sort = (column) => {
    const pressed = headings[used.indexOf(column)];
    // Numbers start descending, because the largest ones are usually wanted.
    const first = isRight(column) ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = pressed.getAttribute("aria-sort") === first ? other : first;
    for (const heading of headings) heading.setAttribute("aria-sort", heading === pressed ? order : "none");
    fill(rows.toSorted((a, b) => compare(value(a, column), value(b, column), order === "ascending" ? 1 : -1)));
  };
  fill(rows);
  return h("details", { class: "table" }, h("summary", {}, summary),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": summary },
      h("table", {}, h("thead", {}, h("tr", {}, headings)), body)));
}

function compare(a, b, sign) {
  const [isA, isB] = [a !== null && a !== undefined, b !== null && b !== undefined];
  if (!isA || !isB) return Number(isB) - Number(isA);
  if (isNumber(a) && isNumber(b)) return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}
