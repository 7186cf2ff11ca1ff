// Make elements so that text from a document is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. attributes: by name; a function is a listener (onclick); null, undefined and false are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element; arguments as for h. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  // append() turns strings into text nodes.
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let numIds = 0;

/** An id that no other element of the page has. */
export function uniqueId(stem) {
  numIds += 1;
  return `${stem}-${numIds}`;
}

/** Buttons of which one is pressed. options: [value, label]; chosen(value) is called when another is pressed. */
export function choice(label, options, value, chosen) {
  const buttons = options.map(([option, text]) =>
    h("button", {
      type: "button",
      "aria-pressed": String(option === value),
      onclick: (event) => {
        for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
        chosen(option);
      },
    }, text));
  return h("div", { class: "choice", role: "group", "aria-label": label }, h("span", { class: "choice-label" }, label), buttons);
}

/** Distinct values, in order of first appearance. */
export function distinct(values) {
  return [...new Set(values)];
}

/** Rows grouped by key(row), in order of first appearance. */
export function grouped(rows, key) {
  const groups = new Map();
  for (const row of rows) {
    const groupKey = key(row);
    if (!groups.has(groupKey)) groups.set(groupKey, []);
    groups.get(groupKey).push(row);
  }
  return groups;
}

/** Whether the value is a finite number. */
export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** The value if it is an array, or else an empty array. */
export function list(value) {
  return Array.isArray(value) ? value : [];
}
