// Draft models with other vocabularies, by translation strategy.
import { choice, distinct, grouped, h, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure } from "./figure.js";
import { anything, counted, fixed2, MEASURES, number, share, times, whole } from "./format.js";
import { table } from "./table.js";

const SHOWN = ["acceptance", "speedup", "tokens_per_forward"];
const COUNTS = ["translated", "absorbed", "resynchronised", "skipped"];
const COLUMNS = [
  { name: "draft_model", label: "draft model" },
  { name: "strategy", label: "strategy" },
  { name: "workload", label: "workload" },
  { name: (row) => lengthOf(row), label: "k", help: "draft length in tokens" },
  { name: "acceptance", label: "accepted", format: share, help: "share of drafted tokens that were accepted" },
  { name: "drafted_per_draft", label: "tok/draft", format: fixed2 },
  { name: "tokens_per_forward", label: "tok/forward", format: fixed2 },
  { name: "plain_tps", label: "plain tok/s", format: number },
  { name: "decode_tps", label: "tok/s", format: number },
  { name: "speedup", label: "speedup", format: times },
  { name: "draft_model_share", label: "draft model's time", format: share, help: "share of decoding time" },
  { name: "drafted_per_s", label: "drafted/s", format: number, help: "drafted tokens per second of the draft model" },
  ...COUNTS.map((name) => ({ name, label: name, format: whole })),
  { name: "parity", label: "parity" },
];

function rowsOf(doc) {
  return list(doc.translation?.rows).filter((row) => row && typeof row === "object");
}

/** The section, or null if no document has one. */
export function translationSection(documents) {
  const having = documents.filter((doc) => rowsOf(doc).length);
  return having.length ? section("translation", "Across vocabularies", having, build) : null;
}

const lengthOf = (row) => (row.is_adaptive ? "adaptive" : anything(row.num_draft_tokens));
const strategyOf = (row) => String(row.strategy);
const modelOf = (row) => String(row.draft_model);

function build(doc) {
  const rows = rowsOf(doc);
  const findings = list(doc.translation.findings);
  return {
    lead: `${counted(distinct(rows.map(modelOf)).length, "draft model")}, whose vocabularies may differ from the target's, and the strategies to translate their drafts.`,
    parts: [
      findings.length && h("aside", { class: "advice", "aria-label": "Findings" }, h("h3", {}, "Findings"), h("ul", {}, findings.map((sentence) => h("li", {}, String(sentence))))),
      plotOf(rows),
      table("Translation as a table", COLUMNS.map((column) => ({ format: anything, ...column })), rows),
      ...list(doc.translation.refused).map((one) => h("p", { class: "note" }, `${anything(one?.draft_model)}, ${anything(one?.strategy)}: skipped: ${anything(one?.reason)}`)),
    ],
  };
}

function plotOf(rows) {
  const models = distinct(rows.map(modelOf));
  const measures = SHOWN.filter((name) => rows.some((row) => isNumber(row[name])));
  if (!measures.length) return null;
  const chosen = { model: models[0], measure: measures[0] };
  const result = figure({
    title: "Strategies, by workload and draft length",
    note: "k: the draft model alone makes drafts of k tokens, and all of them are verified. adaptive: the engine chooses lengths and may leave drafts out.",
    series: distinct(rows.map(strategyOf)),
    controls: [
      ...(models.length > 1 ? [choice("Draft model", models.map((name) => [name, name]), chosen.model, (name) => redraw("model", name))] : []),
      ...(measures.length > 1 ? [choice("Show", measures.map((name) => [name, MEASURES[name].label]), chosen.measure, (name) => redraw("measure", name))] : []),
    ],
    draw: (width, isShown) => {
      const shown = rows.filter((row) => modelOf(row) === chosen.model && isShown(strategyOf(row)));
      return dotPlot(width, {
        ...MEASURES[chosen.measure],
        rows: [...grouped(shown, (row) => JSON.stringify([row.workload, row.prompt_tokens ?? null, lengthOf(row)])).values()].map((of) => ({
          label: String(of[0].workload),
          sub: of[0].is_adaptive ? "adaptive" : `k = ${lengthOf(of[0])}`,
          points: of.map((row) => ({
            series: strategyOf(row), value: row[chosen.measure], tip: tipOf(row),
            ...(chosen.measure === "speedup" ? { low: row.speedup_low, high: row.speedup_high } : {}),
          })),
        })),
      });
    },
  });
  function redraw(name, value) {
    chosen[name] = value;
    result.redraw();
  }
  return result;
}

function tipOf(row) {
  return [
    `${row.workload}, ${strategyOf(row)}, ${row.is_adaptive ? "adaptive" : `k = ${lengthOf(row)}`}`,
    `${share(row.acceptance)} accepted`, `${fixed2(row.tokens_per_forward)} tokens per forward`,
    `${times(row.speedup)} speedup`, `draft model: ${share(row.draft_model_share)} of decoding time`,
    COUNTS.filter((name) => isNumber(row[name])).map((name) => `${whole(row[name])} ${name}`).join(", "),
    ...(row.parity ? [`parity: ${row.parity}`] : []),
  ].filter(Boolean);
}
