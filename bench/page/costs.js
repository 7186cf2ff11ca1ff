// c(w): the cost of a forward pass over w tokens, relative to one over a single token.
import { distinct, grouped, h, isNumber, list } from "./dom.js";
import { measured, namesOf } from "./documents.js";
import { figure } from "./figure.js";
import { fixed2, milliseconds, number, times, whole } from "./format.js";
import { xyPlot } from "./lines.js";

function pointsOf(curve) {
  return list(curve).filter((one) => isNumber(one?.width) && isNumber(one?.seconds)).toSorted((a, b) => a.width - b.width);
}

/** The section, or null if no document has a curve. Curves of several machines share one plot. */
export function costsSection(documents) {
  const having = documents.filter((doc) => pointsOf(doc.cost_curve).length > 1 && pointsOf(doc.cost_curve)[0].width === 1);
  if (!having.length) return null;
  const apart = withoutTwins(having);
  const names = namesOf(apart);
  const curves = apart.map((doc) => {
    const points = pointsOf(doc.cost_curve);
    return { name: apart.length > 1 ? names.get(doc) : "c(w)", of: doc, points: points.map((one) => ({ width: one.width, seconds: one.seconds, ratio: one.seconds / points[0].seconds })) };
  });
  return h("section", { id: "costs", "aria-labelledby": "costs-title" },
    h("h2", { id: "costs-title" }, "Cost curve"),
    h("p", { class: "lead" }, lead(curves[0])),
    distinct(curves.map((curve) => measured(curve.of))).map((text) => h("p", { class: "measured" }, text)),
    plotOf(curves));
}

// For each model and machine only the curve with the most widths, because documents of one session have nearly equal ones.
function withoutTwins(documents) {
  const groups = grouped(documents, (doc) => JSON.stringify([doc.machine?.cpu, doc.model?.name]));
  return [...groups.values()].map((of) => of.toSorted((a, b) => pointsOf(b.cost_curve).length - pointsOf(a.cost_curve).length)[0]);
}

function lead({ points }) {
  const at = points.find((point) => point.width >= 4) ?? points.at(-1);
  const free = points.filter((point) => point.ratio <= 1.1).at(-1);
  const cheap = free.width > 1 ? ` Up to width ${free.width}, a forward pass costs at most a tenth more than a plain one.` : "";
  return `A forward pass over ${at.width} tokens costs ${times(at.ratio)} as much as over a single token; it pays if it commits more than ${fixed2(at.ratio)} tokens on average.${cheap}`;
}

function plotOf(curves) {
  const shown = (isShown) => curves.filter((curve) => isShown(curve.name));
  const widest = Math.max(...curves.flatMap((curve) => curve.points.map((point) => point.width)));
  const dearest = Math.max(...curves.flatMap((curve) => curve.points.map((point) => point.ratio)));
  return figure({
    title: "c(w): cost of a forward pass by width",
    note: "Below the slanted line, a fully accepted draft saves time. At 1, additional width is free.",
    series: curves.map((curve) => curve.name),
    draw: (width, isShown) => xyPlot(width, {
      height: 300,
      label: "cost of a forward pass by width",
      x: { name: "width: tokens in one forward pass", format: whole, domain: [1, widest], isWhole: true },
      y: { name: "cost relative to width 1", format: number, domain: [0, dearest * 1.12] },
      rules: [{ y: 1, label: "plain: width 1" }, { line: [[1, 1], [widest, widest]], label: "no gain even if all is accepted", isDashed: true }],
      named: curves.length > 1 && curves.length < 6 && width > 640,
      series: shown(isShown).map((curve) => ({
        name: curve.name,
        points: curve.points.map((point) => ({
          x: point.width, y: point.ratio,
          tip: [`width ${point.width}`, `${times(point.ratio)} the cost of width 1`, milliseconds(1000 * point.seconds), `pays above ${fixed2(point.ratio)} tokens per forward`],
        })),
      })),
    }),
  });
}
