// Sweeps of settings: draft length by n-gram size, table sizes, gate thresholds, and cold or warm tables.
import { choice, distinct, grouped, h, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure, panels } from "./figure.js";
import { anything, fixed2, FORMATS, MEASURES, number, share, times, whole, words } from "./format.js";
import { xyPlot } from "./lines.js";
import { matrix } from "./matrix.js";
import { extent } from "./scale.js";
import { enoughEntries, ngramsFigure, sizesFigure } from "./sizes.js";
import { table } from "./table.js";

const PARTS = ["grid", "measured", "table_sizes", "ngram_sizes", "gate", "warm"];
function rowsOf(doc, part) {
  return list(doc.sweep?.[part]).filter((row) => row && typeof row === "object");
}

/** The section, or null if no document has one. */
export function sweepSection(documents) {
  const having = documents.filter((doc) => PARTS.some((part) => rowsOf(doc, part).length));
  return having.length ? section("sweep", "Settings", having, build) : null;
}

function build(doc) {
  const [grid, measured, sizes, ngrams, gate, warm] = PARTS.map((part) => rowsOf(doc, part));
  const folds = [["Grid", grid], ["Measured on the engine", measured], ["Table sizes", sizes], ["N-gram sizes", ngrams], ["Gate thresholds", gate], ["Cold and warm", warm]]
    .filter(([, rows]) => rows.length).map(([name, rows]) => fold(`${name}, as a table`, rows));
  return {
    lead: lead(grid, sizes, warm),
    parts: [
      grid.length && gridFigure(grid), measured.length && measuredFigure(measured, grid),
      sizes.length && sizesFigure(sizes), ngrams.length && ngramsFigure(ngrams),
      gate.length && gateFigure(gate), ...warmFigures(warm), ...folds,
    ],
  };
}

function lead(grid, sizes, warm) {
  const sentences = [];
  const best = grid.filter((row) => isNumber(row.speedup)).toSorted((a, b) => b.speedup - a.speedup)[0];
  if (best) sentences.push(`The best cell of the grid is ${best.draft_type} with max draft ${best.num_draft_tokens}${isNumber(best.ngram_size) ? ` and n = ${best.ngram_size}` : ""}: ${times(best.speedup)} on ${best.workload}.`);
  const enough = enoughEntries(sizes);
  if (enough) sentences.push(`The smallest table as good as the largest has ${whole(enough)} entries.`);
  if (warm.length) sentences.push("Warm tables are compared with cold ones, turn by turn.");
  return sentences.join(" ") || "The effect of single settings on the speed.";
}

function fold(summary, rows) {
  const names = distinct(rows.flatMap((row) => Object.keys(row)));
  return table(summary, names.map((name) => ({ name, label: words(name), format: FORMATS[name] ?? anything })), rows);
}

function mean(values) {
  // The geometric mean, so that twice as fast and half as fast cancel out.
  return Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
}

function gridFigure(rows) {
  const workloads = distinct(rows.map((row) => row.workload));
  const lengths = distinct(rows.map((row) => row.num_draft_tokens)).sort((a, b) => a - b);
  const sizes = distinct(rows.map((row) => row.ngram_size ?? null)).sort((a, b) => a - b);
  const most = Math.max(0.2, ...rows.map((row) => Math.abs((row.speedup ?? 1) - 1)));
  let workload = workloads.length > 1 ? null : workloads[0];
  const cell = (type) => (size, length) => {
    const found = rows.filter((row) => row.draft_type === type && (row.ngram_size ?? null) === size && row.num_draft_tokens === length
      && (workload === null || row.workload === workload) && isNumber(row.speedup));
    if (!found.length) return null;
    const value = mean(found.map((row) => row.speedup));
    const lines = [`${type}, max draft ${length}${size === null ? "" : `, n = ${size}`}`, `${times(value)} speedup${found.length > 1 ? ", geometric mean" : ""}`];
    lines.push(...(found.length > 1
      ? found.map((row) => `${row.workload}: ${times(row.speedup)}`)
      : [`${fixed2(found[0].tokens_per_forward)} tokens per forward`, `${share(found[0].acceptance)} accepted`]));
    return { value, text: fixed2(value), tip: lines };
  };
  const result = figure({
    title: "Draft type by draft length and n-gram size",
    note: "Speedup over plain decoding, according to a replay of known answers. Blue cells are faster, orange cells slower.",
    controls: workloads.length > 1 ? [choice("Workload", [[null, "mean of all"], ...workloads.map((name) => [name, name])], null, (name) => {
      workload = name;
      result.redraw();
    })] : [],
    draw: () => h("div", { class: "matrices" }, distinct(rows.map((row) => row.draft_type)).map((type) => matrix({
      caption: type,
      corner: "n ↓  max draft →",
      columns: lengths,
      rows: distinct(rows.filter((row) => row.draft_type === type).map((row) => row.ngram_size ?? null)).sort((a, b) => a - b).map((size) => size ?? "any"),
      cell: (size, length) => cell(type)(size === "any" ? null : size, length),
      most,
    }))),
  });
  return sizes.length || lengths.length ? result : null;
}

function gateFigure(rows) {
  const names = distinct(rows.map((row) => row.workload));
  const modes = [...grouped(rows, (row) => row.gate ?? null)];
  const thresholds = distinct(rows.map((row) => row.threshold)).filter(isNumber).sort((a, b) => a - b);
  const speeds = rows.map((row) => row.speedup).filter(isNumber);
  const room = 0.06 * (Math.max(...speeds, 1) - Math.min(...speeds, 1));
  return figure({
    title: "Gate threshold",
    note: "How repetitive a prompt must be for the gate to start with long drafts (thresholds are spaced evenly). "
      + "A low threshold tries drafts that lose time; a high one misses gains.",
    series: names,
    draw: (width, isShown) => panels(width, modes.map(([mode, of]) => [mode === null ? "" : `gate ${mode}`, (panelWidth) => xyPlot(panelWidth, {
      height: 260,
      label: "speedup by threshold",
      x: { name: "threshold", format: (at) => number(thresholds[at]), domain: [0, Math.max(1, thresholds.length - 1)], ticks: thresholds.map((_, at) => at) },
      y: { name: "speedup over plain decoding", format: times, domain: [Math.min(...speeds, 1) - room, Math.max(...speeds, 1) + room] },
      rules: [{ y: 1, label: "plain" }],
      named: panelWidth > 480 && names.length < 9,
      series: [...grouped(of.filter((row) => isShown(row.workload)), (row) => row.workload)].map(([name, some]) => ({
        name,
        points: some.toSorted((a, b) => a.threshold - b.threshold).map((row) => ({
          x: thresholds.indexOf(row.threshold), y: row.speedup,
          tip: [`${name}, threshold ${number(row.threshold)}`, `${times(row.speedup)} speedup`, `${share(row.acceptance)} accepted`, ...(isNumber(row.repetitive) ? [`${share(row.repetitive)} of prompts count as repetitive`] : [])],
        })),
      })),
    })]), 380),
  });
}

const TYPE = (row) => String(row.draft_type ?? "ngram-mod");
const tableStateOf = (row) => String(row.memory);

function typeChoice(types, chosen, redraw) {
  return types.length > 1 ? [choice("Drafts", types.map((name) => [name, name]), chosen.type, (name) => {
    chosen.type = name;
    redraw();
  })] : [];
}

function measureChoice(rows, chosen, redraw) {
  const names = ["speedup", "tokens_per_forward", "acceptance"].filter((name) => rows.some((row) => isNumber(row[name])));
  chosen.measure = names[0];
  return names.length > 1 ? [choice("Show", names.map((name) => [name, MEASURES[name].label]), names[0], (name) => {
    chosen.measure = name;
    redraw();
  })] : [];
}

function warmTip(row) {
  return [
    [row.pair, row.workload, `${row.memory} table`, isNumber(row.turn) && `turn ${row.turn}`].filter(Boolean).join(", "),
    `${times(row.speedup)} speedup`,
    ...(isNumber(row.measured_speedup) ? [`on the engine: ${times(row.measured_speedup)}`] : []),
    `${fixed2(row.tokens_per_forward)} tokens per forward`, `${share(row.acceptance)} accepted`,
  ];
}

// All turns of the chats together.
function warmWholeFigure(rows) {
  const types = distinct(rows.map(TYPE));
  const chosen = { type: types[0], measure: null };
  const redraw = () => result.redraw();
  const result = figure({
    title: "Cold and warm tables",
    note: "Warm: the table was filled earlier, by the same model or another one with the same vocabulary.",
    series: distinct(rows.map(tableStateOf)),
    controls: [...typeChoice(types, chosen, redraw), ...measureChoice(rows, chosen, redraw)],
    draw: (width, isShown) => dotPlot(width, {
      ...MEASURES[chosen.measure],
      rows: [...grouped(rows.filter((row) => TYPE(row) === chosen.type), (row) => JSON.stringify([row.workload, row.pair])).values()].map((of) => ({
        label: String(of[0].workload ?? of[0].pair),
        sub: of[0].workload ? String(of[0].pair) : null,
        points: of.filter((row) => isShown(tableStateOf(row))).map((row) => ({ series: tableStateOf(row), value: row[chosen.measure], tip: warmTip(row) })),
      })),
    }),
  });
  return result;
}

// Turn by turn, for chats with more than one.
function warmTurnsFigure(rows) {
  const types = distinct(rows.map(TYPE));
  const chosen = { type: types[0], measure: null };
  const redraw = () => result.redraw();
  const turns = distinct(rows.map((row) => row.turn)).sort((a, b) => a - b);
  const result = figure({
    title: "Cold and warm tables, turn by turn",
    series: distinct(rows.map(tableStateOf)),
    controls: [...typeChoice(types, chosen, redraw), ...measureChoice(rows, chosen, redraw)],
    draw: (width, isShown) => {
      const { axis, format, reference, domain } = MEASURES[chosen.measure];
      const shown = rows.filter((row) => TYPE(row) === chosen.type);
      const [low, high] = extent(shown.map((row) => row[chosen.measure]).filter(isNumber), 0.06, isNumber(reference) ? [reference] : []);
      const groups = [...grouped(shown, (row) => [row.workload, row.pair].filter(Boolean).join(", "))];
      return panels(width, groups.map(([name, of]) => [name, (panelWidth) => xyPlot(panelWidth, {
        height: 210,
        label: `${name}: ${MEASURES[chosen.measure].label} by turn`,
        x: { name: "turn", format: whole, domain: [turns[0], Math.max(turns.at(-1), turns[0] + 1)], ticks: turns },
        y: { name: axis, format, domain: domain ?? [low, high] },
        rules: isNumber(reference) ? [{ y: reference, label: "plain" }] : [],
        series: [...grouped(of.filter((row) => isShown(tableStateOf(row))), tableStateOf)].map(([series, some]) => ({
          name: series,
          isDashed: series === "cold",
          points: some.toSorted((a, b) => a.turn - b.turn).map((row) => ({ x: row.turn, y: row[chosen.measure], tip: warmTip(row) })),
        })),
      })]), 300);
    },
  });
  return result;
}

function warmFigures(rows) {
  const wholes = rows.filter((row) => !isNumber(row.turn));
  const turns = rows.filter((row) => isNumber(row.turn));
  const long = new Set(turns.filter((row) => row.turn > 1).map((row) => row.workload));
  const several = turns.filter((row) => long.has(row.workload));
  return [wholes.length && warmWholeFigure(wholes), several.length && warmTurnsFigure(several)];
}

// Configurations measured on the engine, beside their replay.
function measuredFigure(rows, grid) {
  const nameOf = (row) => `${row.draft_type}, max ${row.num_draft_tokens}${isNumber(row.ngram_size) ? `, n = ${row.ngram_size}` : ""}`;
  const replayed = new Map(grid.map((row) => [JSON.stringify([nameOf(row), row.workload]), row.speedup]));
  return figure({
    title: "Measured on the engine",
    note: "The default and the best configuration of each draft type; the small upright mark is the replayed speedup.",
    series: distinct(rows.map(nameOf)),
    draw: (width, isShown) => dotPlot(width, {
      ...MEASURES.speedup,
      rows: [...grouped(rows, (row) => String(row.workload))].map(([label, of]) => ({
        label,
        points: of.filter((row) => isShown(nameOf(row))).map((row) => {
          const replayedSpeedup = replayed.get(JSON.stringify([nameOf(row), row.workload]));
          return {
            series: nameOf(row), value: row.speedup, best: replayedSpeedup,
            tip: [`${label}, ${nameOf(row)}`, `measured: ${times(row.speedup)} speedup`, `replayed: ${times(replayedSpeedup)}`, ...(row.parity ? [`parity: ${row.parity}`] : [])],
          };
        }),
      })),
    }),
  });
}
