// What settings do: draft length by n-gram size, sizes of the table, the gate's threshold, a warm table.
import { choice, distinct, grouped, h, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { figure, panels } from "./figure.js";
import { anything, binary, bytes, fixed2, MEASURES, number, share, times, whole, words } from "./format.js";
import { xyPlot } from "./lines.js";
import { matrix } from "./matrix.js";
import { table } from "./table.js";

const PARTS = ["grid", "table_sizes", "gate", "warm"];
const FORMATS = {
  ...Object.fromEntries(Object.entries(MEASURES).map(([name, own]) => [name, own.format])),
  entries: whole, bytes, occupancy: share, collisions: whole, overwritten: share, foreign_drafts: share, known: share,
  known_again: share, threshold: number, repetitive: share,
};
const SIZES = {
  tokens_per_forward: "Tokens per forward", acceptance: "Acceptance", occupancy: "Occupancy of the table",
  known: "Share of lookups it knew", overwritten: "Share of writes over another's entry", collisions: "Collisions",
};

function rowsOf(own, part) {
  return list(own.sweep?.[part]).filter((row) => row && typeof row === "object");
}

/** The section, or null where no document has one. */
export function sweepSection(documents) {
  const having = documents.filter((own) => PARTS.some((part) => rowsOf(own, part).length));
  return having.length ? section("sweep", "Settings, swept", having, build) : null;
}

function build(own) {
  const [grid, sizes, gate, warm] = PARTS.map((part) => rowsOf(own, part));
  return {
    lead: lead(grid, sizes, warm),
    parts: [
      grid.length && gridFigure(grid), grid.length && fold("The grid as a table", grid),
      sizes.length && sizesFigure(sizes), sizes.length && fold("Table sizes as a table", sizes),
      gate.length && gateFigure(gate), gate.length && fold("Gate thresholds as a table", gate),
      warm.length && warmFigure(warm), warm.length && fold("Cold and warm as a table", warm),
    ],
  };
}

function lead(grid, sizes, warm) {
  const sentences = [];
  const best = grid.filter((row) => isNumber(row.speedup)).toSorted((a, b) => b.speedup - a.speedup)[0];
  if (best) sentences.push(`The best cell of the grid is ${best.draft_type} with ${best.num_draft_tokens} drafts${isNumber(best.ngram_size) ? ` and n = ${best.ngram_size}` : ""}: ${times(best.speedup)} on ${best.workload}.`);
  const enough = enoughEntries(sizes);
  if (enough) sentences.push(`A table of ${whole(enough)} entries is the smallest that loses nothing against the largest.`);
  if (warm.length) sentences.push("A warm table is compared with a cold one, turn by turn.");
  return sentences.join(" ") || "One setting at a time, and what it does to the speed.";
}

function fold(summary, rows) {
  const names = distinct(rows.flatMap((row) => Object.keys(row)));
  return table(summary, names.map((name) => ({ name, label: words(name), format: FORMATS[name] ?? anything })), rows);
}

function mean(values) {
  // Of ratios: twice as fast and half as fast even out.
  return Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
}

function gridFigure(rows) {
  const workloads = distinct(rows.map((row) => row.workload));
  const lengths = distinct(rows.map((row) => row.num_draft_tokens)).sort((a, b) => a - b);
  const sizes = distinct(rows.map((row) => row.ngram_size ?? null)).sort((a, b) => a - b);
  const most = Math.max(0.2, ...rows.map((row) => Math.abs((row.speedup ?? 1) - 1)));
  let workload = workloads.length > 1 ? null : workloads[0];
  const cell = (type) => (size, length) => {
    const own = rows.filter((row) => row.draft_type === type && (row.ngram_size ?? null) === size && row.num_draft_tokens === length
      && (workload === null || row.workload === workload) && isNumber(row.speedup));
    if (!own.length) return null;
    const value = mean(own.map((row) => row.speedup));
    const lines = [`${type}, ${length} drafts${size === null ? "" : `, n = ${size}`}`, `${times(value)} as fast as plain${own.length > 1 ? ", geometric mean" : ""}`];
    lines.push(...(own.length > 1
      ? own.map((row) => `${row.workload}: ${times(row.speedup)}`)
      : [`${fixed2(own[0].tokens_per_forward)} tokens per forward`, `${share(own[0].acceptance)} accepted`]));
    return { value, text: fixed2(value), tip: lines };
  };
  const result = figure({
    title: "Draft type by draft length and n-gram size",
    note: "Speed-up over plain decoding. Blue cells gain, orange cells lose; the deeper, the more.",
    controls: workloads.length > 1 ? [choice("Workload", [[null, "mean of all"], ...workloads.map((name) => [name, name])], null, (name) => {
      workload = name;
      result.redraw();
    })] : [],
    draw: () => h("div", { class: "matrices" }, distinct(rows.map((row) => row.draft_type)).map((type) => matrix({
      caption: type,
      corner: "n ↓  drafts →",
      columns: lengths,
      rows: distinct(rows.filter((row) => row.draft_type === type).map((row) => row.ngram_size ?? null)).sort((a, b) => a - b).map((size) => size ?? "any"),
      cell: (size, length) => cell(type)(size === "any" ? null : size, length),
      most,
    }))),
  });
  return sizes.length || lengths.length ? result : null;
}

function groupName(row) {
  return String(row.workload ?? (isNumber(row.requests) ? `${whole(row.requests)} requests` : "ngram-mod"));
}

function enoughEntries(sizes) {
  if (sizes.length < 2) return null;
  const groups = [...grouped(sizes, groupName).values()];
  const best = groups.map((own) => Math.max(...own.map((row) => row.tokens_per_forward ?? 0)));
  const entries = distinct(sizes.map((row) => row.entries)).sort((a, b) => a - b);
  return entries.find((size) => groups.every((own, at) => {
    const row = own.find((one) => one.entries === size);
    return row && isNumber(row.tokens_per_forward) && row.tokens_per_forward >= best[at] * 0.995;
  })) ?? null;
}

function sizesFigure(rows) {
  const shownNames = Object.keys(SIZES).filter((name) => rows.some((row) => isNumber(row[name])));
  const entries = rows.map((row) => row.entries).filter(isNumber);
  const domain = [Math.min(...entries), Math.max(...entries)];
  const enough = enoughEntries(rows);
  return figure({
    title: "Size of ngram-mod's table",
    note: "The same conversations with tables of each size; entries grow by powers of two."
      + (enough ? " The upright line is the smallest table that stays within half a percent of the best." : ""),
    series: distinct(rows.map(groupName)),
    draw: (width, isShown) => panels(width, shownNames.map((name) => [SIZES[name], (own) => xyPlot(own, {
      height: 200,
      label: `${words(name)} by entries`,
      x: { name: "entries", format: binary, domain, isLog: true },
      y: { name: words(name), format: FORMATS[name], domain: FORMATS[name] === share ? [0, Math.max(0.02, ...rows.map((row) => row[name] ?? 0)) * 1.05] : undefined },
      rules: enough ? [{ x: enough, label: binary(enough) }] : [],
      series: [...grouped(rows.filter((row) => isShown(groupName(row))), groupName)].map(([series, some]) => ({
        name: series,
        points: some.toSorted((a, b) => a.entries - b.entries).map((row) => ({
          x: row.entries, y: row[name],
          tip: [`${series}: ${whole(row.entries)} entries`, ...Object.keys(SIZES).filter((one) => isNumber(row[one])).map((one) => `${SIZES[one].toLowerCase()}: ${FORMATS[one](row[one])}`)],
        })),
      })),
    })]), 300),
  });
}

function gateFigure(rows) {
  const names = distinct(rows.map((row) => row.workload));
  const modes = [...grouped(rows, (row) => row.gate ?? null)];
  const thresholds = distinct(rows.map((row) => row.threshold)).filter(isNumber).sort((a, b) => a - b);
  const speeds = rows.map((row) => row.speedup).filter(isNumber);
  const room = 0.06 * (Math.max(...speeds, 1) - Math.min(...speeds, 1));
  return figure({
    title: "Threshold of the gate",
    note: "How much of a prompt must repeat before drafting is trusted from the start; thresholds stand at equal distances. "
      + "Too low a threshold tries drafts that lose, too high a one leaves gains behind.",
    series: names,
    draw: (width, isShown) => panels(width, modes.map(([mode, of]) => [mode === null ? "" : `gate ${mode}`, (own) => xyPlot(own, {
      height: 260,
      label: "speed-up by threshold",
      x: { name: "threshold", format: (at) => number(thresholds[at]), domain: [0, Math.max(1, thresholds.length - 1)], ticks: thresholds.map((_, at) => at) },
      y: { name: "times as fast as plain decoding", format: times, domain: [Math.min(...speeds, 1) - room, Math.max(...speeds, 1) + room] },
      rules: [{ y: 1, label: "plain" }],
      named: own > 480 && names.length < 9,
      series: [...grouped(of.filter((row) => isShown(row.workload)), (row) => row.workload)].map(([name, some]) => ({
        name,
        points: some.toSorted((a, b) => a.threshold - b.threshold).map((row) => ({
          x: thresholds.indexOf(row.threshold), y: row.speedup,
          tip: [`${name}, threshold ${number(row.threshold)}`, `${times(row.speedup)} as fast as plain`, `${share(row.acceptance)} accepted`, ...(isNumber(row.repetitive) ? [`${share(row.repetitive)} of prompts count as repetitive`] : [])],
        })),
      })),
    })]), 380),
  });
}

function warmFigure(all) {
  // Rows of all turns together have no turn.
  const rows = all.filter((row) => isNumber(row.turn));
  let measure = ["speedup", "tokens_per_forward", "acceptance"].find((name) => rows.some((row) => isNumber(row[name])));
  const pairs = [...grouped(rows, (row) => [row.pair, row.workload, row.draft_type].filter(Boolean).join(", "))];
  const turns = distinct(rows.map((row) => row.turn)).filter(isNumber).sort((a, b) => a - b);
  const names = ["speedup", "tokens_per_forward", "acceptance"].filter((name) => rows.some((row) => isNumber(row[name])));
  const result = figure({
    title: "Cold and warm table",
    note: "Warm: the table has seen the same conversations before, told by the same model or by another one of the same vocabulary.",
    series: distinct(rows.map((row) => String(row.memory))),
    controls: names.length > 1 ? [choice("Show", names.map((name) => [name, MEASURES[name].label]), measure, (name) => {
      measure = name;
      result.redraw();
    })] : [],
    draw: (width, isShown) => {
      const { axis, format, reference, domain } = MEASURES[measure];
      const values = rows.map((row) => row[measure]).filter(isNumber);
      const low = Math.min(...values, reference ?? Infinity);
      const high = Math.max(...values, reference ?? 0);
      return panels(width, pairs.map(([name, of]) => [name, (own) => xyPlot(own, {
        height: 210,
        label: `${name}: ${MEASURES[measure].label} by turn`,
        x: { name: "turn", format: whole, domain: turns.length ? [turns[0], Math.max(turns.at(-1), turns[0] + 1)] : [0, 1], ticks: turns },
        y: { name: axis, format, domain: domain ?? [low - 0.06 * (high - low), high + 0.06 * (high - low)] },
        rules: isNumber(reference) ? [{ y: reference, label: "plain" }] : [],
        series: [...grouped(of.filter((row) => isShown(String(row.memory))), (row) => String(row.memory))].map(([series, some]) => ({
          name: series,
          isDashed: series === "cold",
          points: some.toSorted((a, b) => a.turn - b.turn).map((row) => ({
            x: row.turn, y: row[measure], tip: [`${name}, ${series} table, turn ${row.turn}`, `${times(row.speedup)} as fast as plain`, `${fixed2(row.tokens_per_forward)} tokens per forward`, `${share(row.acceptance)} accepted`],
          })),
        })),
      })]), 300);
    },
  });
  return result;
}
