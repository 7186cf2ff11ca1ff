// A table whose cells are tinted by their distance from a reference, with one color above and another below it.
import { h, isNumber } from "./dom.js";
import { rove, tip } from "./tooltip.js";

/**
 * columns, rows: headings. cell(row, column): {value, text, tip, kind} or null; kind "good" or "bad" tints it fully,
 * otherwise the distance of value from reference does; most is the distance that is tinted fully.
 */
export function matrix({ caption, corner, columns, rows, cell, reference = 1, most = 1 }) {
  const element = h("table", { class: "matrix" },
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, h("td", { class: "corner" }, corner ?? ""), columns.map((column) => h("th", { scope: "col" }, String(column))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, String(row)), columns.map((column) => {
      const content = cell(row, column);
      if (!content) return h("td", { class: "none" }, "·");
      const inner = tip(h("span", { class: "cell" }, content.text), content.tip);
      const tinted = h("td", { class: content.kind ?? "" }, inner);
      if (!content.kind && isNumber(content.value)) {
        const distance = Math.max(-1, Math.min(1, (content.value - reference) / most));
        tinted.className = distance >= 0 ? "above" : "below";
        tinted.style.setProperty("--strength", `${Math.round(Math.abs(distance) * 62)}%`);
      }
      return tinted;
    })))));
  return h("div", { class: "scroll" }, rove(element));
}
