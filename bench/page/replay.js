// Drafters replayed over known answers, without a model, and the speedup that a cost curve predicts for them.
import { choice, distinct, h, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure } from "./figure.js";
import { anything, counted, fixed2, microseconds, share, times, whole, words } from "./format.js";
import { xyPlot } from "./lines.js";
import { table } from "./table.js";

const FORMATS = { tokens_per_forward: fixed2, coverage: share, acceptance: share, drafter_us_per_token: microseconds };

const nameOf = (row) => String(row.drafter ?? row.rule ?? row.policy ?? row.name ?? "drafter");

// Speedup by the name of the cost curve; a document may also have a single number.
function speedups(row) {
  const found = row.speedup ?? row.speedups ?? {};
  return isNumber(found) ? { "cost curve": found } : found;
}

function rowsOf(doc) {
  return list(doc.replay?.rows).filter((row) => row && typeof row === "object");
}

/** The section, or null if no document has one. */
export function replaySection(documents) {
  const having = documents.filter((doc) => rowsOf(doc).length);
  return having.length ? section("replay", "Replayed without a model", having, build) : null;
}

function build(doc) {
  const rows = rowsOf(doc);
  const curves = distinct(rows.flatMap((row) => Object.keys(speedups(row))));
  const workloads = distinct(rows.map(workloadOf));
  // The row over all workloads is the one to choose defaults by.
  const chosen = { workload: workloads.includes("all") ? "all" : workloads[0] };
  const figures = [plotOf(rows, curves, chosen), positions(rows, chosen)].filter(Boolean);
  const control = workloads.length > 1 && h("div", { class: "controls" }, choice("Workload", workloads.map((name) => [name, name]), chosen.workload, (name) => {
    chosen.workload = name;
    for (const one of figures) one.redraw();
  }));
  return { lead: lead(rows.filter((row) => workloadOf(row) === chosen.workload), curves), parts: [control, ...figures, tableOf(rows, curves), ...curveNotes(doc.replay.curves)] };
}

const workloadOf = (row) => String(row.workload ?? row.corpus ?? "all");

function lead(rows, curves) {
  const pairs = Math.max(0, ...rows.map((row) => row.pairs).filter(isNumber));
  const over = pairs ? ` over ${counted(pairs, "recorded pair")} of prompt and answer` : "";
  // Rules that know the answer are upper bounds, not candidates.
  const best = rows.filter((row) => !row.is_hindsight).toSorted((a, b) => (speedups(b)[curves[0]] ?? 0) - (speedups(a)[curves[0]] ?? 0))[0];
  const first = best && curves.length ? ` The best is ${nameOf(best)}: ${times(speedups(best)[curves[0]])} with the costs of ${curves[0]}.` : "";
  return `Rules for drafting, replayed${over}. These speedups follow from a cost curve; they are not measured times.${first}`;
}

function curveNotes(curves) {
  return list(curves).map((curve) => h("p", { class: "note" },
    Object.entries(curve ?? {}).filter(([, value]) => typeof value === "string").map(([, value]) => value).join("; ")));
}

function plotOf(rows, curves, chosen) {
  const measures = [...curves.map((name) => [`curve:${name}`, name]), ["tokens_per_forward", "tokens per forward"], ["coverage", "coverage"], ["drafter_us_per_token", "drafter time"]]
    .filter(([name]) => rows.some((row) => isNumber(valueOf(row, name))));
  if (!measures.length) return null;
  let measure = measures[0][0];
  const hasSlowest = rows.some((row) => row.slowest);
  const result = figure({
    title: "Rules, best first",
    note: hasSlowest ? "The small upright mark is the request with the lowest speedup." : null,
    controls: measures.length > 1 ? [choice("Show", measures, measure, (name) => {
      measure = name;
      result.redraw();
    })] : [],
    draw: (width) => {
      const shown = rows.filter((row) => workloadOf(row) === chosen.workload);
      const best = (row) => valueOf(row, measures[0][0]) ?? 0;
      return dotPlot(width, {
        ...axisOf(measure),
        rows: shown.toSorted((a, b) => best(b) - best(a)).map((row) => ({
          label: nameOf(row),
          sub: row.used_by || null,
          points: [{ series: "auto", value: valueOf(row, measure), best: measure.startsWith("curve:") ? row.slowest?.[measure.slice(6)] : null, tip: tipOf(row, curves) }],
        })),
      });
    },
  });
  return result;
}

function tipOf(row, curves) {
  return [
    nameOf(row), ...(row.drafter && row.rule ? [String(row.rule)] : []),
    ...curves.map((name) => `${name}: ${times(speedups(row)[name])}`),
    `${fixed2(row.tokens_per_forward)} tokens per forward`, `coverage ${share(row.coverage)}`,
    `${microseconds(row.drafter_us_per_token)} of drafting per token`,
  ];
}

function valueOf(row, measure) {
  return measure.startsWith("curve:") ? speedups(row)[measure.slice(6)] : row[measure];
}

function axisOf(measure) {
  if (measure.startsWith("curve:")) return { axis: `speedup with the costs of ${measure.slice(6)}`, format: times, reference: 1 };
  if (measure === "tokens_per_forward") return { axis: "tokens per forward pass", format: fixed2, reference: 1 };
  if (measure === "coverage") return { axis: "share of the answer that was drafted and accepted", format: share, domain: [0, 1] };
  return { axis: "microseconds of drafting per token", format: microseconds };
}

function positions(rows, chosen) {
  const having = rows.filter((row) => list(row.acceptance_by_position).some(isNumber));
  if (!having.length) return null;
  const longest = Math.max(...having.map((row) => row.acceptance_by_position.length));
  return figure({
    title: "Acceptance by position, by rule",
    series: distinct(having.map(nameOf)),
    draw: (width, isShown) => xyPlot(width, {
      height: 280,
      label: "acceptance by position",
      x: { name: "position in the draft", format: whole, domain: [1, Math.max(2, longest)], isWhole: true },
      y: { name: "accepted", format: share, domain: [0, 1] },
      named: width > 640 && distinct(having.map(nameOf)).length < 9,
      series: having.filter((row) => workloadOf(row) === chosen.workload && isShown(nameOf(row))).map((row) => ({
        name: nameOf(row),
        points: row.acceptance_by_position.map((y, at) => ({ x: at + 1, y, tip: [`${nameOf(row)}, position ${at + 1}`, `${share(y)} accepted`] })),
      })),
    }),
  });
}

function tableOf(rows, curves) {
  const names = distinct(rows.flatMap((row) => Object.keys(row))).filter((name) => !["speedup", "speedups", "slowest", "by_curve", "acceptance_by_position"].includes(name));
  return table("Replays as a table", [
    ...names.map((name) => ({ name, label: words(name), format: FORMATS[name] ?? anything })),
    ...curves.map((name) => ({ name: (row) => speedups(row)[name] ?? null, label: name, format: times })),
  ], rows);
}
