// The speedup of every workload and draft type over plain decoding.
import { choice, distinct, grouped, h, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure } from "./figure.js";
import { anything, counted, fixed2, microseconds, milliseconds, MEASURES, number, perSecond, share, times, whole, words } from "./format.js";
import { table } from "./table.js";

const COLUMNS = [
  { name: "workload", label: "workload" },
  { name: "draft_type", label: "drafts" },
  { name: "num_draft_tokens", label: "max draft", format: whole, help: "maximum draft length in tokens" },
  { name: "prompt_tokens", label: "prompt", format: whole, help: "requested prompt length in tokens" },
  { name: "turn", label: "turn", format: whole, help: "turn of the chat; empty: all turns together" },
  { name: "streams", label: "streams", format: whole, help: "chats decoded at the same time" },
  { name: "tokens", label: "tokens", format: whole, help: "tokens of all answers" },
  { name: "plain_tps", label: "plain tok/s", format: number },
  { name: "decode_tps", label: "tok/s", format: number },
  { name: "speedup", label: "speedup", format: times },
  { name: "best_width_speedup", label: "best width", format: times, help: "speedup of the best fixed width, chosen in hindsight" },
  { name: "of_best_width", label: "% of best", format: share, help: "speedup relative to the best width" },
  { name: "acceptance", label: "accepted", format: share, help: "share of drafted tokens that were accepted" },
  { name: "tokens_per_forward", label: "tok/forward", format: fixed2 },
  { name: "drafted_share", label: "drafted", format: share, help: "share of the answers that came from drafts" },
  { name: "drafter_us_per_token", label: "drafter µs/token", format: number },
  { name: "ttft_ms", label: "first token ms", format: number },
  { name: "prefill_tps", label: "prefill tok/s", format: number },
  { name: "energy_j_per_token", label: "J/token", format: number },
  { name: "parity", label: "parity" },
];

/** Rows of a document's decode section, with an additional field series: the draft type, and the draft length if several occur. */
export function decodeRows(doc) {
  const rows = list(doc.decode?.rows).filter((row) => row && typeof row === "object");
  const lengths = grouped(rows, (row) => row.draft_type);
  const hasLengths = [...lengths.values()].some((some) => distinct(some.map((row) => row.num_draft_tokens)).length > 1);
  return rows.map((row) => ({
    ...row,
    workload: String(row.workload),
    series: hasLengths ? `${row.draft_type}, max ${row.num_draft_tokens}` : String(row.draft_type),
  }));
}

/** The properties that distinguish a case of a workload: "600-token prompt, 4 streams"; may be empty. */
export function caseOf(row, rows) {
  const parts = [];
  if (distinct(rows.map((one) => one.prompt_tokens)).length > 1 && isNumber(row.prompt_tokens)) parts.push(`${whole(row.prompt_tokens)}-token prompt`);
  if (distinct(rows.map((one) => one.streams)).length > 1 && isNumber(row.streams)) parts.push(counted(row.streams, "stream"));
  return parts.join(", ");
}

/** The section, or null if no document has rows. */
export function speedupSection(documents) {
  const having = documents.filter((doc) => decodeRows(doc).length);
  return having.length ? section("speedup", "Speedup", having, build) : null;
}

function build(doc) {
  const rows = decodeRows(doc);
  const together = rows.filter((row) => !isNumber(row.turn));
  const parts = [plotOf(together.length ? together : rows), table("All figures as a table", COLUMNS, rows)];
  return { lead: lead(together.filter((row) => isNumber(row.speedup))), parts };
}

function lead(rows) {
  if (!rows.length) return "Each dot is a workload with one draft type.";
  const sorted = rows.toSorted((a, b) => a.speedup - b.speedup);
  const [least, most] = [sorted[0], sorted.at(-1)];
  const slower = sorted.filter((row) => row.speedup < 0.995).length;
  const range = rows.length === 1
    ? `With ${most.series} drafts, the speedup on ${most.workload} is ${times(most.speedup)}.`
    : `The speedup over plain decoding of the same prompts ranges from ${times(least.speedup)} (${least.workload}, `
      + `${least.series}) to ${times(most.speedup)} (${most.workload}, ${most.series}).`;
  const lost = slower ? ` ${slower} of ${rows.length} are slower than plain decoding.` : " None is slower than plain decoding.";
  return range + lost;
}

function plotOf(rows) {
  let measure = "speedup";
  const names = Object.keys(MEASURES).filter((name) => rows.some((row) => isNumber(row[name])));
  const order = orderOf(rows);
  const result = figure({
    title: "Workloads by speedup",
    note: [
      "The lines start at plain decoding.",
      rows.some((row) => isNumber(row.speedup_low)) && "Their broad part is the range of repeated runs.",
      rows.some((row) => isNumber(row.best_width_speedup)) && "The small upright mark is the speedup of the best fixed draft length, chosen in hindsight.",
    ].filter(Boolean).join(" "),
    series: distinct(rows.map((row) => row.series)),
    controls: names.length > 1 ? [choice("Show", names.map((name) => [name, MEASURES[name].label]), names.includes(measure) ? measure : names[0], (name) => {
      measure = name;
      result.redraw();
    })] : [],
    draw: (width, isShown) => dotPlot(width, {
      ...MEASURES[measure],
      label: `${MEASURES[measure].label} by workload`,
      rows: order.map(({ workload, sub, of }) => ({
        label: workload,
        sub,
        points: of.filter((row) => isShown(row.series)).map((row) => ({
          series: row.series,
          value: row[measure],
          best: measure === "speedup" ? row.best_width_speedup : null,
          low: measure === "speedup" ? row.speedup_low : null,
          high: measure === "speedup" ? row.speedup_high : null,
          tip: tipOf(row, sub),
        })),
      })),
    }),
  });
  return result;
}

// Workloads with the highest speedup first, whatever is shown.
function orderOf(rows) {
  const groups = [...grouped(rows, (row) => JSON.stringify([row.workload, caseOf(row, rows)])).values()];
  const best = (of) => of.reduce((most, row) => Math.max(most, row.speedup ?? 0), 0);
  return groups
    .map((of) => ({ workload: of[0].workload, sub: caseOf(of[0], rows), of }))
    .sort((a, b) => best(b.of) - best(a.of));
}

function tipOf(row, sub) {
  const lines = [`${row.workload}${sub ? ` (${sub})` : ""}, ${row.series}`];
  lines.push(`${times(row.speedup)} speedup: ${perSecond(row.decode_tps)}, plain ${perSecond(row.plain_tps)}`);
  if (isNumber(row.speedup_low) && isNumber(row.speedup_high)) lines.push(`${times(row.speedup_low)} to ${times(row.speedup_high)} over the runs`);
  if (isNumber(row.best_width_speedup)) lines.push(`best fixed width: ${times(row.best_width_speedup)}`);
  lines.push(`${share(row.acceptance)} of drafts accepted, ${fixed2(row.tokens_per_forward)} tokens per forward`);
  if (isNumber(row.drafter_us_per_token)) lines.push(`drafter: ${microseconds(row.drafter_us_per_token)} per token`);
  if (isNumber(row.ttft_ms)) lines.push(`first token after ${milliseconds(row.ttft_ms)}`);
  if (row.by_source) lines.push(...sourceLines(row.by_source));
  if (row.parity) lines.push(`parity with plain decoding: ${row.parity}`);
  return lines;
}

function sourceLines(bySource) {
  return Object.entries(bySource).map(([name, counts]) => {
    const [drafted, accepted] = list(counts);
    return isNumber(drafted) ? `${name}: ${anything(accepted)} of ${anything(drafted)} tokens accepted` : `${words(name)}: ${anything(counts)}`;
  });
}

/** The main figures of the first document, for the top of the page. */
export function headline(documents) {
  const doc = documents.find((one) => decodeRows(one).length);
  if (!doc) return null;
  const rows = decodeRows(doc).filter((row) => !isNumber(row.turn));
  const speeds = rows.map((row) => row.speedup).filter(isNumber);
  if (!speeds.length) return null;
  const judged = rows.filter((row) => row.parity);
  const passed = judged.filter((row) => row.parity === "PASS").length;
  const costs = rows.map((row) => row.drafter_us_per_token).filter(isNumber).sort((a, b) => a - b);
  const most = rows.find((row) => row.speedup === Math.max(...speeds));
  const least = rows.find((row) => row.speedup === Math.min(...speeds));
  return h("dl", { class: "headline" },
    big(times(most.speedup), `highest speedup: ${most.workload}, ${most.series}`),
    speeds.length > 1 && big(times(least.speedup), `lowest speedup: ${least.workload}, ${least.series}`),
    judged.length > 0 && big(`${passed} of ${judged.length}`, passed === judged.length ? "with the same tokens as plain decoding" : "with the same tokens as plain decoding; see Parity"),
    costs.length > 0 && big(microseconds(costs[Math.floor(costs.length / 2)]), "drafter time per token (median)"));
}

function big(value, label) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, value));
}
