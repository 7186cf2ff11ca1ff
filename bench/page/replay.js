// Drafters replayed over known answers, without a model: what a cost curve would turn their hits into.
import { choice, distinct, grouped, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure, panels } from "./figure.js";
import { anything, counted, fixed2, microseconds, share, times, whole, words } from "./format.js";
import { xyPlot } from "./lines.js";
import { table } from "./table.js";

const FORMATS = { tokens_per_forward: fixed2, coverage: share, acceptance: share, drafter_us_per_token: microseconds };

const nameOf = (row) => String(row.drafter ?? row.rule ?? row.policy ?? row.name ?? "drafter");

// Speed-up by the name of the cost curve; a document may also give one number for one curve.
function speedups(row) {
  const own = row.speedup ?? row.speedups ?? {};
  return isNumber(own) ? { "cost curve": own } : own;
}

function rowsOf(own) {
  return list(own.replay?.rows).filter((row) => row && typeof row === "object");
}

/** The section, or null where no document has one. */
export function replaySection(documents) {
  const having = documents.filter((own) => rowsOf(own).length);
  return having.length ? section("replay", "Replayed without a model", having, build) : null;
}

function build(own) {
  const rows = rowsOf(own);
  const curves = distinct(rows.flatMap((row) => Object.keys(speedups(row))));
  return { lead: lead(rows, curves), parts: [plotOf(rows, curves), positions(rows), tableOf(rows, curves)] };
}

function lead(rows, curves) {
  const pairs = Math.max(0, ...rows.map((row) => row.pairs).filter(isNumber));
  const over = pairs ? ` over ${counted(pairs, "recorded pair")} of prompt and answer` : "";
  const best = rows.toSorted((a, b) => (speedups(b)[curves[0]] ?? 0) - (speedups(a)[curves[0]] ?? 0))[0];
  const first = curves.length ? ` ${nameOf(best)} comes first: ${times(speedups(best)[curves[0]])} with the costs of ${curves[0]}.` : "";
  return `Rules for drafting, replayed${over}; a speed-up here is what a cost curve would make of them, not a measured time.${first}`;
}

function plotOf(rows, curves) {
  const measures = [...curves.map((name) => [`curve:${name}`, name]), ["tokens_per_forward", "tokens per forward"], ["coverage", "coverage"], ["drafter_us_per_token", "drafter time"]]
    .filter(([name]) => rows.some((row) => isNumber(valueOf(row, name))));
  if (!measures.length) return null;
  let measure = measures[0][0];
  const corpora = distinct(rows.map((row) => row.workload ?? row.corpus ?? ""));
  const order = [...grouped(rows, nameOf)].sort((a, b) => (valueOf(b[1][0], measure) ?? 0) - (valueOf(a[1][0], measure) ?? 0));
  const series = (row) => (corpora.length > 1 ? String(row.workload ?? row.corpus ?? "all") : "auto");
  const result = figure({
    title: "Rules, the best first",
    series: corpora.length > 1 ? distinct(rows.map(series)) : [],
    controls: measures.length > 1 ? [choice("Show", measures, measure, (name) => {
      measure = name;
      result.redraw();
    })] : [],
    draw: (width, isShown) => dotPlot(width, {
      ...axisOf(measure),
      rows: order.map(([label, of]) => ({
        label,
        points: of.filter((row) => corpora.length < 2 || isShown(series(row))).map((row) => ({
          series: series(row),
          value: valueOf(row, measure),
          tip: [[label, row.workload].filter(Boolean).join(", "), ...curves.map((name) => `${name}: ${times(speedups(row)[name])}`), `${fixed2(row.tokens_per_forward)} tokens per forward`, `coverage ${share(row.coverage)}`, `${microseconds(row.drafter_us_per_token)} of drafting per token`],
        })),
      })),
    }),
  });
  return result;
}

function valueOf(row, measure) {
  return measure.startsWith("curve:") ? speedups(row)[measure.slice(6)] : row[measure];
}

function axisOf(measure) {
  if (measure.startsWith("curve:")) return { axis: `times as fast as plain, with the costs of ${measure.slice(6)}`, format: times, reference: 1 };
  if (measure === "tokens_per_forward") return { axis: "tokens per forward pass", format: fixed2, reference: 1 };
  if (measure === "coverage") return { axis: "share of the answer that was drafted and accepted", format: share, domain: [0, 1] };
  return { axis: "microseconds of drafting per token", format: microseconds };
}

function positions(rows) {
  const having = rows.filter((row) => list(row.acceptance_by_position).some(isNumber));
  if (!having.length) return null;
  const groups = [...grouped(having, (row) => String(row.workload ?? row.corpus ?? "all pairs"))];
  const longest = Math.max(...having.map((row) => row.acceptance_by_position.length));
  return figure({
    title: "Acceptance by position, by rule",
    series: distinct(having.map(nameOf)),
    draw: (width, isShown) => panels(width, groups.map(([name, of]) => [name, (own) => xyPlot(own, {
      height: 220,
      label: `${name}: acceptance by position`,
      x: { name: "position in the draft", format: whole, domain: [1, Math.max(2, longest)] },
      y: { name: "accepted", format: share, domain: [0, 1] },
      named: groups.length === 1 && own > 560,
      series: of.filter((row) => isShown(nameOf(row))).map((row) => ({
        name: nameOf(row),
        points: row.acceptance_by_position.map((y, at) => ({ x: at + 1, y, tip: [`${nameOf(row)}, position ${at + 1}`, `${share(y)} accepted`] })),
      })),
    })]), 300),
  });
}

function tableOf(rows, curves) {
  const names = distinct(rows.flatMap((row) => Object.keys(row))).filter((name) => !["speedup", "speedups", "acceptance_by_position"].includes(name));
  return table("Replays as a table", [
    ...names.map((name) => ({ name, label: words(name), format: FORMATS[name] ?? anything })),
    ...curves.map((name) => ({ name: (row) => speedups(row)[name] ?? null, label: name, format: times })),
  ], rows);
}
