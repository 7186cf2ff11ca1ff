// Draw the charts of the page, and answer its menus, headings and buttons.
"use strict";
(() => {
  const INK = "var(--ink)", MUTED = "var(--muted)", LINE = "var(--line)";
  // Colors stay variables of page.css, so that charts follow light and dark mode without being drawn again.
  const CONFIG = {
    background: null, view: { stroke: null }, font: "system-ui, sans-serif",
    range: { category: Array.from({ length: 8 }, (_, at) => `var(--color-${at})`) },
    axis: {
      labelColor: MUTED, titleColor: MUTED, gridColor: LINE, domainColor: LINE, tickColor: LINE,
      titleFontWeight: "normal", labelLimit: 260,
    },
    legend: { labelColor: INK, titleColor: MUTED, orient: "top", title: null, columns: 4, labelLimit: 300 },
    header: { labelColor: INK, labelFontWeight: "bold", title: null },
    rule: { color: INK }, text: { color: INK }, title: { color: INK }, tick: { color: INK },
  };
  const OPTIONS = {
    actions: false, renderer: "svg", ast: true, defaultStyle: false, config: CONFIG, logLevel: 1,
    tooltip: { disableDefaultStyle: true },
  };

  // Keep a chart as wide as its place on the page.
  function draw(figure) {
    const host = figure.querySelector(".chart");
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const menus = spec.params.filter(({ bind }) => bind).map(({ name }) => name);
    let view = null, drawn = Promise.resolve();
    async function embed(width) {
      const chosen = view ? menus.map((name) => [name, view.signal(name)]) : [];
      const own = structuredClone(spec);
      const panel = Number(host.dataset.panel);
      if (panel) {
        own.columns = Math.max(1, Math.floor(width / panel));
        own.spec.width = Math.max(120, Math.floor(width / own.columns) - 80);
      } else {
        const space = own.vconcat ? Math.max(120, width - 220) : width;
        const fitted = { width: space, autosize: { type: "fit-x", contains: "padding" } };
        for (const one of own.vconcat ?? [own]) Object.assign(one, fitted);
      }
      view?.finalize();
      view = (await vegaEmbed(host, own, OPTIONS)).view;
      for (const [name, value] of chosen) view.signal(name, value);
      await view.runAsync();
    }
    let last = 0;
    new ResizeObserver(([{ contentRect }]) => {
      const width = Math.floor(contentRect.width);
      if (width && Math.abs(width - last) > 1) drawn = drawn.then(() => embed(width));
      last = width;
    }).observe(host);
  }

  // Sort a table by a column, or turn its order around. Missing values stay at the end.
  function sort(heading) {
    const isNumber = heading.className === "number";
    // Numbers start descending, because the largest ones are usually wanted.
    const orders = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
    const order = orders[Number(heading.ariaSort === orders[0])];
    for (const other of heading.parentNode.cells) other.ariaSort = other === heading ? order : "none";
    const number = (text) => parseFloat(text.replaceAll(",", ""));
    const compare = isNumber ? (a, b) => number(a) - number(b) : (a, b) => a.localeCompare(b, "en");
    const sign = order === "ascending" ? 1 : -1;
    const body = heading.closest("table").tBodies[0];
    body.append(...[...body.rows].sort((one, other) => {
      const [a, b] = [one, other].map((row) => row.cells[heading.cellIndex].textContent);
      return (a === "–") - (b === "–") || sign * compare(a, b);
    }));
  }

  // Light up the tokens of a source; once more, and all are lit.
  function press(button) {
    const isOn = button.ariaPressed !== "true";
    for (const other of button.parentNode.children) other.ariaPressed = String(isOn && other === button);
    for (const token of button.closest(".answer").querySelectorAll(".token"))
      token.classList.toggle("dim", isOn && token.dataset.source !== button.dataset.source);
  }

  function enliven(inside) {
    inside.querySelectorAll("figure").forEach(draw);
    for (const button of inside.querySelectorAll("th button")) button.onclick = () => sort(button.parentNode);
    for (const button of inside.querySelectorAll(".answer button")) button.onclick = () => press(button);
    for (const one of inside.querySelectorAll("[data-color]"))
      one.style.setProperty("--color", `var(--color-${one.dataset.color})`);
    for (const choice of inside.querySelectorAll(".choice")) {
      const menu = choice.querySelector("select"), chosen = choice.querySelector(".chosen");
      const variants = choice.querySelectorAll(":scope > template");
      menu.onchange = () => {
        chosen.replaceChildren(variants[menu.selectedIndex].content.cloneNode(true));
        enliven(chosen);
      };
      menu.onchange();
    }
  }

  enliven(document.body);
  const theme = document.querySelector("#theme select");
  theme.onchange = () => { document.documentElement.dataset.theme = theme.value; };
  window.onbeforeprint = () => document.querySelectorAll("details.table").forEach((one) => { one.open = true; });
})();
