// The frame around a plot: title, controls, a legend that switches series, and the plot at the available width.
import { h } from "./dom.js";
import { rove } from "./tooltip.js";
import { assignSlots, slotOf, swatch } from "./series.js";

const GAP = 28;

/**
 * A figure. title, note: text. series: names for the legend, which is shown for two or more; labels: display names of
 * some series. controls: elements. draw(width, isShown) draws the plot again; isShown(name) returns whether a series
 * is switched on.
 */
export function figure({ title, note, series = [], labels = {}, controls = [], draw }) {
  assignSlots(series);
  const hidden = new Set();
  const body = h("div", { class: "plot" });
  let width = 0;
  const redraw = () => {
    if (!width) return;
    const drawn = draw(width, (name) => !hidden.has(name));
    body.replaceChildren(rove(drawn));
  };
  const legend = series.length > 1 && h("div", { class: "legend", role: "group", "aria-label": "Series; press to hide or show" },
    series.map((name) => h("button", {
      type: "button",
      "aria-pressed": "true",
      onclick: (event) => {
        if (!hidden.delete(name)) hidden.add(name);
        event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(name)));
        redraw();
      },
      onpointerenter: () => light(body, name),
      onpointerleave: () => light(body, null),
    }, swatch(slotOf(name)), labels[name] ?? name)));
  const element = h("figure", {},
    h("figcaption", {}, h("h3", {}, title), note && h("p", {}, note)),
    (controls.length > 0 || legend) && h("div", { class: "controls" }, controls, legend),
    body);
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width) return;
    width = now;
    redraw();
  }).observe(body);
  element.redraw = redraw;
  return element;
}

function light(body, name) {
  for (const element of body.querySelectorAll("[data-series]")) {
    element.classList.toggle("dim", name !== null && element.dataset.series !== name);
  }
}

/** Small plots of one kind side by side. panels: [heading, draw(width)]; least: their minimum width. */
export function panels(width, all, least = 250) {
  const most = Math.max(1, Math.floor((width + GAP) / (least + GAP)));
  // The same number in each row where possible: four are two and two, not three and one.
  const columns = Math.ceil(all.length / Math.ceil(all.length / most));
  const panelWidth = Math.floor((width - GAP * (columns - 1)) / columns);
  const grid = h("div", { class: "panels" }, all.map(([heading, draw]) =>
    h("div", { class: "panel" }, h("h4", {}, heading), draw(panelWidth))));
  grid.style.gridTemplateColumns = `repeat(${columns}, ${panelWidth}px)`;
  return grid;
}
