// The tooltip of a mark under the pointer or with keyboard focus. The marks of one figure are a single tab stop;
// the arrow keys move between them.
import { h } from "./dom.js";

const TIPS = new WeakMap();
const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
let box = null;
let current = null;

/** Set an element's tooltip: lines of text, the first one as heading. Returns the element. */
export function tip(element, lines) {
  TIPS.set(element, lines);
  element.classList.add("mark");
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", lines.join("; "));
  return element;
}

/** Make the marks inside reachable by keyboard: one by Tab, the others by arrow keys, Home and End. */
export function rove(container) {
  const marks = [...container.querySelectorAll(".mark")];
  marks.forEach((mark, at) => mark.setAttribute("tabindex", at ? "-1" : "0"));
  container.addEventListener("keydown", (event) => {
    const at = marks.indexOf(event.target);
    if (at < 0) return;
    let next = at + (KEYS[event.key] ?? 0);
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = marks.length - 1;
    if (next === at || !marks[next]) return;
    event.preventDefault();
    marks[at].setAttribute("tabindex", "-1");
    marks[next].setAttribute("tabindex", "0");
    marks[next].focus();
  });
  return container;
}

/** Start listening; call once for the page. */
export function listenForTips() {
  box = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
  document.body.append(box);
  document.addEventListener("pointerover", (event) => show(event.target.closest?.(".mark")));
  document.addEventListener("focusin", (event) => show(event.target.closest?.(".mark")));
  document.addEventListener("focusout", () => show(null));
  document.addEventListener("scroll", () => show(null), { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show(null);
  });
}

function show(mark) {
  if (mark === current) return;
  current = mark ?? null;
  const lines = mark && TIPS.get(mark);
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(h("strong", {}, lines[0]), ...lines.slice(1).map((line) => h("span", {}, line)));
  const around = mark.getClientRects()[0] ?? mark.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const left = around.left + around.width / 2 - width / 2;
  const above = around.top - height - 10;
  box.style.left = `${Math.max(6, Math.min(left, document.documentElement.clientWidth - width - 6))}px`;
  box.style.top = `${above > 6 ? above : around.bottom + 10}px`;
}
