// Draw the charts of the page, and answer its menus, headings and buttons.
"use strict";
(() => {
  const INK = "var(--ink)", MUTED = "var(--muted)", LINE = "var(--line)";
  const COLORS = Array.from({ length: 8 }, (_, at) => `var(--color-${at})`);
  // Colors stay variables of page.css, so that charts follow light and dark mode without being drawn again.
  const CONFIG = {
    background: null, view: { stroke: null }, font: "system-ui, sans-serif", range: { category: COLORS },
    axis: {
      labelColor: MUTED, titleColor: MUTED, gridColor: LINE, domainColor: LINE, tickColor: LINE,
      titleFontWeight: "normal", labelLimit: 260,
    },
    legend: { labelColor: INK, titleColor: MUTED, orient: "top", title: null, columns: 4, labelLimit: 500 },
    header: { labelColor: INK, labelFontWeight: "bold", title: null },
    axisQuantitative: { grid: true }, rule: { color: INK }, tick: { color: INK }, text: { color: INK },
  };
  const OPTIONS = {
    actions: false, renderer: "svg", ast: true, defaultStyle: false, config: CONFIG, logLevel: 1,
    tooltip: { disableDefaultStyle: true },
  };

  function draw(figure) {
    const host = figure.querySelector(".chart");
    const spec = JSON.parse(figure.querySelector("script").textContent);
    // Panels that do not fit beside each other stand below each other.
    const columns = Math.max(1, Math.floor(host.clientWidth / 330));
    if (spec.facet) spec.columns = columns, spec.spec.width = Math.floor(host.clientWidth / columns) - 75;
    vegaEmbed(host, spec, OPTIONS);
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
      return (a === "-") - (b === "-") || sign * compare(a, b);
    }));
  }

  // Color the tokens of each source. A button lights them up; once more, and all are lit.
  function color(answer) {
    const tokens = [...answer.querySelectorAll(".token")], buttons = [...answer.querySelectorAll("button")];
    buttons.forEach((button, at) => {
      const { source } = button.dataset;
      const own = [button, ...tokens].filter((one) => one.dataset.source === source && source !== "model");
      for (const one of own) one.style.setProperty("--color", COLORS[at % 8]);
      button.onclick = () => {
        const isOn = button.ariaPressed !== "true";
        for (const other of buttons) other.ariaPressed = String(isOn && other === button);
        for (const token of tokens) token.classList.toggle("dim", isOn && token.dataset.source !== source);
      };
    });
    tokens.forEach((token, at) => { token.title = `token ${at + 1}: ${token.dataset.source}`; });
  }

  function enliven(inside) {
    inside.querySelectorAll("figure").forEach(draw);
    inside.querySelectorAll(".answer").forEach(color);
    for (const button of inside.querySelectorAll("th button")) button.onclick = () => sort(button.parentNode);
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
  const tables = document.getElementsByClassName("table");
  window.onbeforeprint = () => { for (const one of tables) one.open = true; };
})();
