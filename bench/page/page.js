// Draw the charts of the page, and answer its menus, headings and buttons.
(() => {
  // Colors are variables of page.css, so that charts follow light and dark mode without being drawn again.
  const MUTED = "var(--muted)", LINE = "var(--line)";
  const COLORS = Array.from({ length: 8 }, (_, at) => `var(--color-${at})`);
  const CONFIG = {
    background: null, view: { stroke: null }, font: "system-ui, sans-serif", range: { category: COLORS },
    style: { "guide-label": { fill: MUTED }, "guide-title": { fill: MUTED, fontWeight: "normal" } },
    axis: { gridColor: LINE, domainColor: LINE, tickColor: LINE, labelLimit: 260 },
    legend: { orient: "top", title: null, columns: 4, labelLimit: 500 },
    header: { title: null, labelFontWeight: "bold" }, axisQuantitative: { grid: true }, rule: { color: "var(--ink)" },
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

  // Sort a table by a column, from the largest value; once more, from the smallest. "-" stays at the end.
  function sort(heading) {
    const order = heading.ariaSort === "descending" ? "ascending" : "descending";
    for (const other of heading.parentNode.cells) other.ariaSort = other === heading ? order : "none";
    const sign = order === "ascending" ? 1 : -1, body = heading.closest("table").tBodies[0];
    const number = (text) => parseFloat(text.replaceAll(",", ""));
    body.append(...[...body.rows].sort((one, other) => {
      const [a, b] = [one, other].map((row) => row.cells[heading.cellIndex].textContent);
      return (a === "-") - (b === "-") || sign * (number(a) - number(b) || a.localeCompare(b, "en"));
    }));
  }

  // Color the tokens of each source. A button lights them up; once more, and all are lit.
  function color(answer) {
    const tokens = [...answer.querySelectorAll(".token")], buttons = [...answer.querySelectorAll("button")];
    tokens.forEach((token, at) => { token.title = `token ${at + 1}: ${token.dataset.source}`; });
    buttons.forEach((button, at) => {
      const isOwn = (one) => one.dataset.source === button.dataset.source;
      for (const one of [button, ...tokens].filter(isOwn)) one.style.setProperty("--color", COLORS[at % 8]);
      button.onclick = () => {
        const isOn = button.ariaPressed !== "true";
        for (const other of buttons) other.ariaPressed = String(isOn && other === button);
        for (const token of tokens) token.classList.toggle("dim", isOn && !isOwn(token));
      };
    });
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
  window.onbeforeprint = () => { for (const one of document.querySelectorAll(".table")) one.open = true; };
})();
