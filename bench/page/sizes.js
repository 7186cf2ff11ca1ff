// The size of ngram-mod's table and the length of its n-grams.
import { distinct, grouped, isNumber } from "./dom.js";
import { figure, panels } from "./figure.js";
import { binary, FORMATS, share, whole, words } from "./format.js";
import { xyPlot } from "./lines.js";

const SIZES = {
  tokens_per_forward: "Tokens per forward", acceptance: "Acceptance", occupancy: "Occupancy of the table",
  known: "Share of tokens it predicts", overwritten: "Share of writes over another n-gram", collisions: "Collisions",
};
const JUDGED = ["known", "tokens_per_forward", "speedup"];
const NOTHING_LOST = 0.995;

function groupName(row) {
  return String(row.workload ?? (isNumber(row.requests) ? `${whole(row.requests)} requests` : "ngram-mod"));
}

/** The smallest table that is as good as the largest for all traffic; null if every smaller one is worse. */
export function enoughEntries(rows) {
  const groups = [...grouped(rows, groupName).values()];
  const entries = distinct(rows.map((row) => row.entries)).filter(isNumber).sort((a, b) => a - b);
  const found = entries.find((size) => groups.every((group) => {
    const largest = group.find((row) => row.entries === entries.at(-1));
    const row = group.find((one) => one.entries === size);
    return row && largest && JUDGED.every((name) => !isNumber(largest[name]) || row[name] >= NOTHING_LOST * largest[name]);
  }));
  return found === entries.at(-1) ? null : found ?? null;
}

/** Figures by number of table entries. */
export function sizesFigure(rows) {
  const entries = rows.map((row) => row.entries).filter(isNumber);
  const domain = [Math.min(...entries), Math.max(...entries)];
  const enough = enoughEntries(rows);
  return sweptFigure(rows, {
    title: "Size of ngram-mod's table",
    note: "The same requests with tables of different sizes."
      + (enough ? " The vertical line is the smallest table within half a percent of the largest." : ""),
    field: "entries",
    axis: { name: "entries", format: binary, domain, isLog: true },
    rules: enough ? [{ x: enough, label: binary(enough) }] : [],
    describe: (row) => `${whole(row.entries)} entries`,
  });
}

/** Figures by length of n-grams. */
export function ngramsFigure(rows) {
  const sizes = distinct(rows.map((row) => row.ngram_size)).filter(isNumber).sort((a, b) => a - b);
  return sweptFigure(rows, {
    title: "Length of ngram-mod's n-grams",
    note: "The same requests with a table of the default size. Short n-grams match more often, and predict worse.",
    field: "ngram_size",
    axis: { name: "tokens in an n-gram", format: whole, ticks: sizes },
    rules: [],
    describe: (row) => `n-grams of ${whole(row.ngram_size)}`,
  });
}

function sweptFigure(rows, { title, note, field, axis, rules, describe }) {
  const names = Object.keys(SIZES).filter((name) => rows.some((row) => isNumber(row[name])));
  const top = (name) => Math.max(0.02, ...rows.map((row) => row[name] ?? 0)) * 1.05;
  const figuresOf = (row) => names.filter((name) => isNumber(row[name])).map((name) => `${SIZES[name].toLowerCase()}: ${FORMATS[name](row[name])}`);
  return figure({
    title,
    note,
    series: distinct(rows.map(groupName)),
    draw: (width, isShown) => panels(width, names.map((name) => [SIZES[name], (panelWidth) => xyPlot(panelWidth, {
      height: 200,
      label: `${words(name)} by ${axis.name}`,
      x: axis,
      y: { name: words(name), format: FORMATS[name], domain: FORMATS[name] === share ? [0, top(name)] : undefined },
      rules,
      series: [...grouped(rows.filter((row) => isShown(groupName(row))), groupName)].map(([series, some]) => ({
        name: series,
        points: some.toSorted((a, b) => a[field] - b[field]).map((row) => ({ x: row[field], y: row[name], tip: [`${series}: ${describe(row)}`, ...figuresOf(row)] })),
      })),
    })]), 300),
  });
}
