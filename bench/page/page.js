// Draw the report: sections of charts, tables and texts, as bench/page/sections.py describes them.
"use strict";
(() => {
  const PALETTES = { light: ["#0b6fb8", "#c9560b", "#00806a", "#a63d86", "#806300", "#5b5fc7", "#7a4a2b", "#3d8fc6"],
    dark: ["#5fb2f3", "#f2914f", "#35c2a1", "#e48fcb", "#d8b93a", "#a3a6f7", "#cf9a76", "#a5d3f3"] };
  const MISSING = "–";
  const root = document.documentElement;
  const sections = JSON.parse(document.getElementById("data").textContent);
  const redraws = [];
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Text from a document only ever becomes a text node.
  function h(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function config() {
    // A custom property keeps light-dark() as it is written; only a used color is resolved.
    const used = (name) => {
      const probe = h("span");
      probe.style.color = `var(${name})`;
      document.body.append(probe);
      const found = getComputedStyle(probe).color;
      probe.remove();
      return found;
    };
    const [ink, muted, line] = [used("--ink"), used("--muted"), used("--line")];
    return {
      background: null, view: { stroke: null }, font: "system-ui, sans-serif",
      range: { category: PALETTES[isDark() ? "dark" : "light"] },
      axis: { labelColor: muted, titleColor: muted, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal", labelLimit: 260 },
      legend: { labelColor: ink, titleColor: muted, orient: "top", title: null, columns: 4, labelLimit: 300 },
      header: { labelColor: ink, labelFontWeight: "bold", title: null }, rule: { color: ink }, text: { color: ink }, title: { color: ink },
    };
  }

  function chart({ title, note, spec, panel }) {
    const host = h("div", { class: "chart" });
    let view = null, width = 0, queue = Promise.resolve();
    const draw = async () => {
      const kept = view ? (spec.params ?? []).filter((one) => one.bind && one.bind !== "legend").map((one) => [one.name, view.signal(one.name)]) : [];
      const own = structuredClone(spec);
      // Panels of a chart share the width; a single view takes all of it.
      const columns = panel ? Math.max(1, Math.floor(width / panel)) : 1;
      const wide = Math.max(120, Math.floor(width / columns) - (panel ? 80 : 0));
      if (panel) Object.assign(own, { columns }), (own.spec.width = wide);
      else for (const one of own.vconcat ?? [own]) Object.assign(one, { width: own.vconcat ? Math.max(120, width - 220) : width, autosize: { type: "fit-x", contains: "padding" } });
      view?.finalize();
      const made = await vegaEmbed(host, own, {
        actions: false, renderer: "svg", ast: true, defaultStyle: false, config: config(), logLevel: 1, tooltip: { disableDefaultStyle: true },
      });
      view = made.view;
      for (const [name, value] of kept) view.signal(name, value);
      await view.runAsync();
    };
    const redraw = () => { if (width) queue = queue.then(draw); return queue; };
    redraws.push(redraw);
    new ResizeObserver(([entry]) => {
      const now = Math.floor(entry.contentRect.width);
      if (Math.abs(now - width) > 1) { width = now; redraw(); }
    }).observe(host);
    return h("figure", {}, h("figcaption", {}, h("h3", {}, title), note && h("p", { class: "note" }, note)), host);
  }

  const FORMATS = {
    times: (value) => `${value.toFixed(value >= 10 ? 1 : 2)}×`,
    share: (value) => `${(100 * value).toFixed(Math.abs(value) < 0.0995 && value !== 0 ? 1 : 0)} %`,
    number: (value) => value.toLocaleString("en-GB", { maximumFractionDigits: value && Math.abs(value) < 100 ? Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))) : 0 }),
  };

  function shown(value, format) {
    if (value === null || value === undefined) return MISSING;
    if (typeof value === "number") return FORMATS[format ?? "number"](value);
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (Array.isArray(value)) return value.map((one) => shown(one)).join(", ");
    return typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name} ${shown(one)}`).join(", ") : String(value);
  }

  function table({ title, columns, rows }) {
    const isRight = (name) => rows.every((row) => typeof (row[name] ?? 0) === "number");
    const body = h("tbody");
    const fill = (sorted) => body.replaceChildren(...sorted.map((row) => h("tr", {}, columns.map(({ name, format }) =>
      h("td", { class: isRight(name) ? "number" : null }, shown(row[name], format))))));
    const headings = columns.map(({ name, label }) => h("th", { scope: "col", "aria-sort": "none", class: isRight(name) ? "number" : null },
      h("button", { type: "button", onclick: () => sort(name) }, label)));
    const sort = (name) => {
      const at = columns.findIndex((column) => column.name === name);
      // Numbers start descending, because the largest ones are usually wanted.
      const orders = isRight(name) ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = headings[at].getAttribute("aria-sort") === orders[0] ? orders[1] : orders[0];
      headings.forEach((heading, other) => heading.setAttribute("aria-sort", other === at ? order : "none"));
      const sign = order === "ascending" ? 1 : -1;
      fill(rows.toSorted((one, other) => {
        const [a, b] = [one[name] ?? null, other[name] ?? null];
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (typeof a === "number" && typeof b === "number" ? a - b : shown(a).localeCompare(shown(b), "en", { numeric: true }));
      }));
    };
    fill(rows);
    return h("details", { class: "table" }, h("summary", {}, title), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      h("table", {}, h("thead", {}, h("tr", {}, headings)), body)));
  }

  function menu(label, names, choose) {
    if (names.length < 2) return null;
    return h("label", { class: "note" }, `${label} `, h("select", { onchange: (event) => choose(event.target.selectedIndex) },
      names.map((name) => h("option", {}, name))));
  }

  // Answers as text, with each token colored by its source.
  function tokens({ samples }) {
    const view = h("div");
    const draw = (at) => {
      const { prompt, tokens: all } = samples[at];
      const sources = Map.groupBy(all, ([, source]) => source);
      const drafted = [...sources.keys()].filter((source) => source !== "model");
      const paint = (element, source) => {
        if (source !== "model") element.style.setProperty("--color", PALETTES[isDark() ? "dark" : "light"][drafted.indexOf(source) % 8]);
        return element;
      };
      const text = h("div", { class: "tokens" }, all.map(([token, source], number) => paint(h("span", {
        class: source === "model" ? "token" : "token drafted", "data-source": source, title: `token ${number + 1} of ${all.length}: ${source}` }, token), source)));
      const press = (event, source) => {
        const isOn = event.currentTarget.getAttribute("aria-pressed") !== "true";
        for (const button of buttons) button.setAttribute("aria-pressed", String(isOn && button === event.currentTarget));
        for (const token of text.children) token.classList.toggle("dim", isOn && token.dataset.source !== source);
      };
      const buttons = [...sources].toSorted((a, b) => b[1].length - a[1].length).map(([source, of]) => paint(
        h("button", { type: "button", "aria-pressed": "false", onclick: (event) => press(event, source) }, `${source} ${FORMATS.share(of.length / all.length)}`), source));
      view.replaceChildren(h("div", { class: "sources-of-tokens" }, buttons), text,
        prompt ? h("details", {}, h("summary", {}, "Prompt"), h("pre", {}, prompt)) : "");
    };
    redraws.push(() => draw(chosen));
    let chosen = 0;
    draw(0);
    return h("div", {}, menu("Answer", samples.map((one) => one.name), (at) => { chosen = at; draw(at); }), view);
  }

  const PARTS = {
    chart, table, tokens,
    list: ({ title, items }) => h("aside", { class: "advice", "aria-label": title }, h("h3", {}, title), h("ul", {}, items.map((item) => h("li", {}, item)))),
    note: ({ text }) => h("p", { class: "note" }, text),
    headline: ({ items }) => h("dl", { class: "headline" }, items.map(([value, label]) => h("div", {}, h("dt", {}, label), h("dd", {}, value)))),
    sources: ({ items }) => h("dl", { class: "sources" }, items.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  };

  function section({ id, title, variants }) {
    const body = h("div");
    const draw = (at) => {
      const { lead, measured, parts } = variants[at];
      body.replaceChildren(h("p", { class: "lead" }, lead), ...measured.map((text) => h("p", { class: "note measured" }, text)),
        ...parts.map((part) => PARTS[part.kind](part)));
    };
    const names = variants.map((one) => one.name);
    const heading = id === "top" ? h("h1", {}, title) : h("h2", { id: `${id}-title` }, title);
    const element = h(id === "top" ? "div" : "section", { id }, heading, menu("Measured", names, draw), body);
    draw(0);
    return element;
  }

  document.getElementById("report").replaceChildren(...sections.map(section));
  document.getElementById("contents").append(...sections.filter((one) => one.id !== "top").map(({ id, short }) => h("a", { href: `#${id}` }, short)));
  const redrawAll = () => Promise.all(redraws.map((redraw) => redraw()));
  document.querySelector("#theme select").addEventListener("change", (event) => {
    if (event.target.value === "auto") delete root.dataset.theme;
    else root.dataset.theme = event.target.value;
    redrawAll();
  });
  dark.addEventListener("change", redrawAll);
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details.table")) fold.open = true;
  });
})();
