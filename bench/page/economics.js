// When drafting pays: speed by acceptance, the fitted lines, and where they cross plain decoding.
import { distinct, grouped, h, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { dotPlot } from "./dots.js";
import { figure, panels } from "./figure.js";
import { anything, counted, fixed2, fixed3, listed, number, perSecond, share, times, whole, words } from "./format.js";
import { xyPlot } from "./lines.js";
import { matrix } from "./matrix.js";
import { slotOf } from "./series.js";
import { table } from "./table.js";

/** The section, or null if no document has one. */
export function economicsSection(documents) {
  const having = documents.filter((doc) => ["fits", "choices", "buckets", "predicted", "advice"].some((part) => list(doc.economics?.[part]).length));
  return having.length ? section("economics", "When drafting pays", having, build) : null;
}

function build(doc) {
  const { economics } = doc;
  const fits = list(economics.fits).filter((fit) => isNumber(fit?.a) && isNumber(fit?.b));
  const points = list(economics.points).filter((point) => isNumber(point?.acceptance) && isNumber(point?.decode_tps) && !point.is_gated);
  const plain = plainOf(economics, fits);
  const buckets = list(economics.buckets).filter((one) => one && typeof one === "object");
  const predicted = list(economics.predicted).filter((one) => isNumber(one?.predicted) && isNumber(one?.measured));
  const choices = list(economics.choices).filter((one) => isNumber(one?.speedup));
  return {
    lead: lead(fits),
    parts: [
      advice(list(economics.advice)),
      fits.length && fitsFigure(fits, points, plain),
      fits.length && table("Fits as a table", columnsOf(fits), fits),
      breakEvens(fits).length > 1 && betaFigure(breakEvens(fits), economics.beta),
      choices.length && choicesFigure(choices),
      choices.length && table("Choices as a table", columnsOf(choices), choices),
      buckets.length && bucketsFigure(buckets),
      predicted.length && predictedFigure(predicted),
      economics.intervals && h("p", { class: "note" }, String(economics.intervals)),
      energy(economics.energy),
    ],
  };
}

// The speed of a point, scaled to the average plain speed of all chats, which the fits refer to.
const speedOf = (point, plain) => (isNumber(point.speedup) && isNumber(plain) ? point.speedup * plain : point.decode_tps);
const typeOf = (point) => String(point.draft_type ?? "controlled");
const nameOf = (length) => `k = ${length}`;
const breakEvens = (fits) => fits.filter((fit) => isNumber(fit.break_even));

// The speed of plain decoding: as given, or computed from the fits at their break-evens.
function plainOf(economics, fits) {
  if (isNumber(economics.plain_tps)) return economics.plain_tps;
  const implied = fits.map((fit) => fit.plain_tps ?? (isNumber(fit.break_even) ? fit.a + fit.b * fit.break_even : null)).filter(isNumber);
  return implied.length ? implied.reduce((sum, value) => sum + value, 0) / implied.length : null;
}

function columnsOf(rows) {
  const formats = { break_even: fixed3, low: fixed3, high: fixed3, r_squared: fixed3 };
  return distinct(rows.flatMap((row) => Object.keys(row))).map((name) => ({ name, label: words(name), format: formats[name] ?? anything }));
}

function lead(fits) {
  const known = breakEvens(fits);
  if (!known.length) return "Decoding speed by acceptance rate.";
  const needs = known.map((fit) => `${fixed2(fit.break_even)} at k = ${fit.num_draft_tokens}`);
  return `Drafts of k tokens pay if their acceptance is above the break-even: ${listed(needs)}. Below it, plain decoding is faster.`;
}

function advice(sentences) {
  if (!sentences.length) return null;
  return h("aside", { class: "advice", "aria-label": "Advice" }, h("h3", {}, "Advice"), h("ul", {}, sentences.map((sentence) => h("li", {}, String(sentence)))));
}

function fitsFigure(fits, points, plain) {
  const speeds = [...points.map((point) => speedOf(point, plain)), ...fits.flatMap((fit) => [fit.a, fit.a + fit.b]), plain].filter(isNumber);
  const [low, high] = [Math.max(0, Math.min(...speeds)), Math.max(...speeds)];
  const room = 0.05 * (high - low);
  const types = distinct(points.map(typeOf));
  return figure({
    title: "Speed by acceptance and draft length",
    note: "Each mark is an answer; the slanted line is the least-squares fit a + b·α over drafts of controlled acceptance. It crosses plain decoding at the break-even; the band is the 95 % interval.",
    series: types,
    draw: (width, isShown) => panels(width, fits.map((fit) => [nameOf(fit.num_draft_tokens), (panelWidth) => {
      const slot = slotOf(types.includes("controlled") || !types.length ? "controlled" : types[0]);
      const hasBand = isNumber(fit.low) && isNumber(fit.high);
      return xyPlot(panelWidth, {
        height: 240,
        label: `tokens per second by acceptance, k = ${fit.num_draft_tokens}`,
        x: { name: "acceptance α", format: share, domain: [0, 1], ticks: [0, 0.25, 0.5, 0.75, 1] },
        y: { name: "tokens per second", format: number, domain: [Math.max(0, low - room), high + room] },
        bands: hasBand ? [{ from: Math.max(0, fit.low), to: Math.min(1, fit.high), slot }] : [],
        rules: [
          ...(isNumber(plain) ? [{ y: plain, label: "plain" }] : []),
          { line: [[0, fit.a], [1, fit.a + fit.b]], slot },
          ...(isNumber(fit.break_even) && fit.break_even >= 0 && fit.break_even <= 1 ? [{ x: fit.break_even, label: `pays above ${fixed2(fit.break_even)}`, slot, isDashed: true }] : []),
        ],
        series: types.filter(isShown).map((type) => ({
          name: type,
          isLine: false,
          points: points.filter((point) => typeOf(point) === type && point.num_draft_tokens === fit.num_draft_tokens).map((point) => ({
            x: point.acceptance, y: speedOf(point, plain),
            tip: [[point.workload, type, nameOf(fit.num_draft_tokens)].filter(Boolean).join(", "), `${share(point.acceptance)} accepted`, perSecond(point.decode_tps), `${times(point.speedup)} speedup`],
          })),
        })),
      });
    }]), 270),
  });
}

function choicesFigure(choices) {
  const kind = (one) => `${one.draft_type}${one.is_gated ? ", gated" : ""}`;
  const lengths = distinct(choices.map((one) => one.num_draft_tokens)).sort((a, b) => a - b);
  const most = Math.max(0.2, ...choices.map((one) => Math.abs(one.speedup - 1)));
  return figure({
    title: "Draft types and lengths",
    note: "Speedup by workload and draft length. Blue cells are faster than plain decoding, orange cells slower; † marks a 95 % interval that contains plain decoding.",
    draw: () => h("div", { class: "matrices" }, [...grouped(choices, kind)].map(([name, of]) => matrix({
      caption: name,
      corner: "max draft →",
      columns: lengths,
      rows: distinct(of.map((one) => String(one.workload))),
      most,
      cell: (workload, length) => {
        const choice = of.find((one) => String(one.workload) === workload && one.num_draft_tokens === length);
        if (!choice) return null;
        const isOpen = isNumber(choice.low) && isNumber(choice.high) && choice.low < 1 && choice.high > 1;
        return {
          value: choice.speedup,
          text: `${fixed2(choice.speedup)}${isOpen ? "†" : ""}`,
          tip: [`${workload}, ${name}, max draft ${length}`, `${times(choice.speedup)} speedup`, `95 %: ${times(choice.low)} to ${times(choice.high)}`, `${share(choice.acceptance)} accepted`, ...(isNumber(choice.n) ? [counted(choice.n, "chat")] : [])],
        };
      },
    }))),
  });
}

function betaFigure(fits, beta) {
  const lengths = fits.map((fit) => fit.num_draft_tokens);
  const to = Math.max(...lengths) + 0.5;
  const hasLine = isNumber(beta?.r) && isNumber(beta?.beta);
  const interval = isNumber(beta?.low) && isNumber(beta?.high) ? ` (95 %: ${fixed3(beta.low)} to ${fixed3(beta.high)})` : "";
  return figure({
    title: "Break-even by draft length",
    note: hasLine
      ? `The fit is α = ${fixed3(beta.r)} ${beta.beta < 0 ? "−" : "+"} ${fixed3(Math.abs(beta.beta))} k${interval}: each additional draft token needs that much ${beta.beta < 0 ? "less" : "more"} acceptance. Vertical lines are 95 % intervals.`
      : "Vertical lines are 95 % intervals.",
    draw: (width) => xyPlot(Math.min(width, 620), {
      height: 250,
      label: "break-even acceptance by draft length",
      x: { name: "draft length k", format: whole, domain: [0.5, to], ticks: distinct(lengths).sort((a, b) => a - b) },
      y: { name: "break-even acceptance", format: share, domain: [Math.min(0, ...fits.map((fit) => fit.break_even)), Math.max(1, ...fits.map((fit) => fit.break_even))] },
      rules: hasLine ? [{ line: [[0.5, beta.r + beta.beta * 0.5], [to, beta.r + beta.beta * to]], label: "r + β k", isDashed: true }] : [],
      series: fits.map((fit) => ({
        name: "controlled",
        points: [{ x: fit.num_draft_tokens, y: fit.break_even, low: clamp(fit.low), high: clamp(fit.high), tip: [nameOf(fit.num_draft_tokens), `break-even at ${share(fit.break_even)}`, `95 %: ${share(fit.low)} to ${share(fit.high)}`, ...(isNumber(fit.n) ? [counted(fit.n, "run")] : [])] }],
      })),
    }),
  });
}

function clamp(value) {
  return isNumber(value) ? Math.max(0, Math.min(1, value)) : null;
}

function bucketName(bucket) {
  if (bucket.label ?? bucket.bucket) return String(bucket.label ?? bucket.bucket);
  const [from, to] = [bucket.from ?? bucket.low, bucket.to ?? bucket.high];
  return isNumber(from) && isNumber(to) ? `${share(from)} to ${share(to)}` : "acceptance";
}

function bucketsFigure(buckets) {
  const series = (bucket) => (isNumber(bucket.num_draft_tokens) ? nameOf(bucket.num_draft_tokens) : "auto");
  const names = distinct(buckets.map(series));
  const all = distinct(buckets.map(bucketName));
  return figure({
    title: "Speedup by acceptance",
    note: "Answers grouped by the acceptance rate of their drafts; the broad lines run from the slowest to the fastest.",
    series: names,
    draw: (width, isShown) => dotPlot(width, {
      axis: "speedup over plain decoding",
      format: times,
      reference: 1,
      hasStems: false,
      rows: all.map((label) => ({
        label,
        points: buckets.filter((bucket) => bucketName(bucket) === label && isShown(series(bucket))).map((bucket) => ({
          series: series(bucket), value: bucket.speedup, low: bucket.lowest, high: bucket.highest,
          tip: [`${label} accepted, ${series(bucket)}`, `${times(bucket.speedup)} speedup`, `from ${times(bucket.lowest)} to ${times(bucket.highest)}`, ...(isNumber(bucket.n) ? [counted(bucket.n, "run")] : [])],
        })),
      })),
    }),
  });
}

function predictedFigure(rows) {
  const values = rows.flatMap((row) => [row.predicted, row.measured]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const domain = [Math.max(0, low - 0.05 * (high - low || 1)), high + 0.05 * (high - low || 1)];
  const series = (row) => String(row.draft_type ?? "controlled");
  const names = distinct(rows.map(series));
  return figure({
    title: "Predicted and measured speedup",
    note: "No prediction uses the answer that it predicts. On the slanted line, prediction and measurement agree.",
    series: names,
    draw: (width, isShown) => panels(Math.min(width, 900), [...grouped(rows, (row) => row.by ?? null)].map(([by, of]) => [by === null ? "" : `by the ${by}`, (panelWidth) => xyPlot(panelWidth, {
      height: Math.min(panelWidth * 0.82, 360),
      label: "predicted by measured speedup",
      x: { name: "measured speedup", format: times, domain },
      y: { name: "predicted speedup", format: times, domain },
      rules: [{ line: [[domain[0], domain[0]], [domain[1], domain[1]]], isDashed: true }],
      series: names.filter(isShown).map((name) => ({
        name,
        isLine: false,
        points: of.filter((row) => series(row) === name).map((row) => ({
          x: row.measured, y: row.predicted,
          tip: [[row.workload, name, isNumber(row.num_draft_tokens) && nameOf(row.num_draft_tokens)].filter(Boolean).join(", "), `measured ${times(row.measured)}`, `predicted ${times(row.predicted)}`],
        })),
      })),
    })]), 320),
  });
}

function energy(value) {
  if (!value || typeof value !== "object") return null;
  const rows = list(value.rows);
  if (rows.length) return table(`Energy of ${value.measured}, in joules per token`, columnsOf(rows), rows);
  return h("p", { class: "note" }, `Energy: not measured${value.reason ? ` (${value.reason})` : ""}.`);
}
