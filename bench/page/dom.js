// Elements, made so that no text from a document is ever taken for markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. attributes: by name; onclick and the like are listeners; null and false are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, as h makes HTML ones. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  // append() makes text nodes of strings.
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let numIds = 0;

/** A name that no other element of the page has. */
export function uniqueId(stem) {
  numIds += 1;
  return `${stem}-${numIds}`;
}

/** Buttons of which one is pressed. options: [value, label]; chosen(value) is called on a change. */
export function choice(label, options, value, chosen) {
  const buttons = options.map(([own, text]) =>
    h("button", {
      type: "button",
      "aria-pressed": String(own === value),
      onclick: (event) => {
        for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
        chosen(own);
      },
    }, text));
  return h("div", { class: "choice", role: "group", "aria-label": label }, h("span", { class: "choice-label" }, label), buttons);
}

/** Values in the order in which they first come, each once. */
export function distinct(values) {
  return [...new Set(values)];
}

/** Rows by what key(row) gives, in the order of first appearance. */
export function grouped(rows, key) {
  const groups = new Map();
  for (const row of rows) {
    const own = key(row);
    if (!groups.has(own)) groups.set(own, []);
    groups.get(own).push(row);
  }
  return groups;
}

/** Whether the value is a number that can be drawn. */
export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** An array, whatever a document holds. */
export function list(value) {
  return Array.isArray(value) ? value : [];
}
