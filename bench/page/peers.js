// Other servers and loops on the same prompts.
import { choice, distinct, grouped, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure } from "./figure.js";
import { anything, MEASURES, number, words } from "./format.js";
import { table } from "./table.js";

const NAMES = ["server", "peer", "name", "side", "system"];
const SPEEDS = ["tokens_per_s", "decode_tps", "tps", "speedup", "ttft_ms"];

function rowsOf(own) {
  return list(own.peers?.rows).filter((row) => row && typeof row === "object");
}

/** The section, or null where no document has one. */
export function peersSection(documents) {
  const having = documents.filter((own) => rowsOf(own).length);
  return having.length ? section("peers", "Beside others", having, build) : null;
}

function build(own) {
  const rows = rowsOf(own);
  const field = NAMES.find((name) => rows.some((row) => row[name])) ?? "server";
  const measures = SPEEDS.filter((name) => rows.some((row) => isNumber(row[name])));
  const columns = distinct(rows.flatMap((row) => Object.keys(row)))
    .filter((name) => rows.some((row) => row[name] === null || typeof row[name] !== "object"))
    .map((name) => ({ name, label: words(name), format: MEASURES[name]?.format ?? anything }));
  return { lead: lead(rows, field, measures[0]), parts: [measures.length && plotOf(rows, field, measures), table("Beside others, as a table", columns, rows)] };
}

function lead(rows, field, measure) {
  const names = distinct(rows.map((row) => String(row[field])));
  const wins = [...grouped(rows, (row) => row.workload ?? "all").values()].map((own) => own.filter((row) => isNumber(row[measure])).toSorted((a, b) => b[measure] - a[measure])[0]).filter(Boolean);
  const winners = distinct(wins.map((row) => String(row[field])));
  const told = winners.map((name) => `${name} was fastest on ${wins.filter((row) => String(row[field]) === name).length} of ${wins.length}`);
  return `${names.length} ways to get the same answers, asked the same prompts in turns${measure ? `: ${told.join(", ")}` : ""}.`;
}

function plotOf(rows, field, measures) {
  let measure = measures[0];
  const titles = { tokens_per_s: "tokens per second", decode_tps: "tokens per second while decoding", tps: "tokens per second" };
  const groups = [...grouped(rows, (row) => row.workload ?? "all prompts")];
  const result = figure({
    title: "The same prompts, asked in turns",
    series: distinct(rows.map((row) => String(row[field]))),
    controls: measures.length > 1 ? [choice("Show", measures.map((name) => [name, titles[name] ?? MEASURES[name]?.label ?? words(name)]), measure, (name) => {
      measure = name;
      result.redraw();
    })] : [],
    draw: (width, isShown) => dotPlot(width, {
      axis: titles[measure] ?? MEASURES[measure]?.axis ?? words(measure),
      format: MEASURES[measure]?.format ?? number,
      reference: MEASURES[measure]?.reference,
      domain: measure === "speedup" ? undefined : [0, 1.02 * Math.max(...rows.map((row) => row[measure] ?? 0))],
      rows: groups.map(([label, of]) => ({
        label: String(label),
        points: of.filter((row) => isShown(String(row[field]))).map((row) => ({
          series: String(row[field]),
          value: row[measure],
          low: row[`${measure}_low`] ?? (measure === measures[0] ? row.low : null),
          high: row[`${measure}_high`] ?? (measure === measures[0] ? row.high : null),
          tip: [`${label}, ${row[field]}`, ...Object.entries(row).filter(([name, value]) => isNumber(value) && name !== field).map(([name, value]) => `${words(name)}: ${number(value)}`).slice(0, 8)],
        })),
      })),
    }),
  });
  return result;
}
