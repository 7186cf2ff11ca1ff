// Other servers and loops with the same prompts.
import { choice, distinct, grouped, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure } from "./figure.js";
import { anything, MEASURES, number, words } from "./format.js";
import { table } from "./table.js";

const NAMES = ["server", "peer", "name", "side", "system"];
const TIP_FIELDS = ["tokens_per_s", "decode_tps", "ttft_ms", "inter_token_ms", "speedup", "requests", "failed"];
const SPEEDS = ["tokens_per_s", "decode_tps", "tps", "speedup", "ttft_ms"];

function rowsOf(doc) {
  return list(doc.peers?.rows).filter((row) => row && typeof row === "object");
}

/** The section, or null if no document has one. */
export function peersSection(documents) {
  const having = documents.filter((doc) => rowsOf(doc).length);
  return having.length ? section("peers", "Compared with others", having, build) : null;
}

function build(doc) {
  const rows = rowsOf(doc);
  const field = NAMES.find((name) => rows.some((row) => row[name])) ?? "server";
  const measures = SPEEDS.filter((name) => rows.some((row) => isNumber(row[name])));
  const columns = distinct(rows.flatMap((row) => Object.keys(row)))
    .filter((name) => rows.some((row) => row[name] === null || typeof row[name] !== "object"))
    .map((name) => ({ name, label: words(name), format: MEASURES[name]?.format ?? anything }));
  return { lead: lead(rows, field, measures[0]), parts: [measures.length && plotOf(rows, field, measures), table("Peers as a table", columns, rows)] };
}

function lead(rows, field, measure) {
  const names = distinct(rows.map((row) => String(row[field])));
  const wins = [...grouped(rows, (row) => row.workload ?? "all").values()].map((ofWorkload) => ofWorkload.filter((row) => isNumber(row[measure])).toSorted((a, b) => b[measure] - a[measure])[0]).filter(Boolean);
  const winners = distinct(wins.map((row) => String(row[field])));
  const summary = winners.map((name) => `${name} was fastest on ${wins.filter((row) => String(row[field]) === name).length} of ${wins.length} workloads`);
  return `${names.length} peers with the same prompts, alternating${measure ? `: ${summary.join(", ")}` : ""}.`;
}

function plotOf(rows, field, measures) {
  let measure = measures[0];
  const titles = { ttft_ms: "milliseconds to the first token", inter_token_ms: "milliseconds between tokens", speedup: "speedup", tokens_per_s: "tokens per second", decode_tps: "tokens per second while decoding", tps: "tokens per second" };
  const groups = [...grouped(rows, (row) => row.workload ?? "all prompts")];
  // Ratios are to the first one.
  const first = String(rows[0][field]);
  const result = figure({
    title: "The same prompts on each peer",
    series: distinct(rows.map((row) => String(row[field]))),
    controls: measures.length > 1 ? [choice("Show", measures.map((name) => [name, MEASURES[name]?.label ?? titles[name] ?? words(name)]), measure, (name) => {
      measure = name;
      result.redraw();
    })] : [],
    draw: (width, isShown) => dotPlot(width, {
      axis: measure === "speedup" ? `times as fast as ${first}` : titles[measure] ?? MEASURES[measure]?.axis ?? words(measure),
      format: MEASURES[measure]?.format ?? number,
      reference: MEASURES[measure]?.reference,
      referenceLabel: first,
      domain: measure === "speedup" ? undefined : [0, 1.02 * Math.max(...rows.map((row) => row[measure] ?? 0))],
      rows: groups.map(([label, of]) => ({
        label: String(label),
        points: of.filter((row) => isShown(String(row[field]))).map((row) => ({
          series: String(row[field]),
          value: row[measure],
          low: row[`${measure}_low`] ?? (measure === measures[0] ? row.low : null),
          high: row[`${measure}_high`] ?? (measure === measures[0] ? row.high : null),
          tip: [`${label}, ${row[field]}`, ...TIP_FIELDS.filter((name) => isNumber(row[name])).map((name) => `${titles[name] ?? words(name)}: ${number(row[name])}`), ...(row.parity ? [`parity: ${row.parity}`] : []), ...(row.error ? [String(row.error)] : [])],
        })),
      })),
    }),
  });
  return result;
}
