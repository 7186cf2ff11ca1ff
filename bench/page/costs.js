// c(w): what a forward of w tokens costs, in forwards of one.
import { distinct, grouped, h, isNumber, list } from "./dom.js";
import { measured, namesOf } from "./documents.js";
import { figure } from "./figure.js";
import { fixed2, milliseconds, number, times, whole } from "./format.js";
import { xyPlot } from "./lines.js";

function pointsOf(curve) {
  return list(curve).filter((one) => isNumber(one?.width) && isNumber(one?.seconds)).toSorted((a, b) => a.width - b.width);
}

/** The section, or null where no document has a curve. Curves of several machines share one plot. */
export function costsSection(documents) {
  const having = documents.filter((own) => pointsOf(own.cost_curve).length > 1 && pointsOf(own.cost_curve)[0].width === 1);
  if (!having.length) return null;
  const apart = withoutTwins(having);
  const names = namesOf(apart);
  const curves = apart.map((own) => {
    const points = pointsOf(own.cost_curve);
    return { name: apart.length > 1 ? names.get(own) : "c(w)", of: own, points: points.map((one) => ({ width: one.width, seconds: one.seconds, ratio: one.seconds / points[0].seconds })) };
  });
  return h("section", { id: "costs", "aria-labelledby": "costs-title" },
    h("h2", { id: "costs-title" }, "Cost curve"),
    h("p", { class: "lead" }, lead(curves[0])),
    distinct(curves.map((curve) => measured(curve.of))).map((text) => h("p", { class: "measured" }, text)),
    plotOf(curves));
}

// Of one model on one machine the curve that knows most widths; documents of one session carry much the same.
function withoutTwins(documents) {
  const groups = grouped(documents, (own) => JSON.stringify([own.machine?.cpu, own.model?.name]));
  return [...groups.values()].map((of) => of.toSorted((a, b) => pointsOf(b.cost_curve).length - pointsOf(a.cost_curve).length)[0]);
}

function lead({ points }) {
  const at = points.find((point) => point.width >= 4) ?? points.at(-1);
  const free = points.filter((point) => point.ratio <= 1.1).at(-1);
  const cheap = free.width > 1 ? ` Up to width ${free.width} a forward costs at most a tenth more than plain.` : "";
  return `Feeding ${at.width} tokens at once costs ${times(at.ratio)} a forward of one; it pays when more than ${fixed2(at.ratio)} tokens come of it on average.${cheap}`;
}

function plotOf(curves) {
  const shown = (isShown) => curves.filter((curve) => isShown(curve.name));
  const widest = Math.max(...curves.flatMap((curve) => curve.points.map((point) => point.width)));
  const dearest = Math.max(...curves.flatMap((curve) => curve.points.map((point) => point.ratio)));
  return figure({
    title: "c(w): cost of a forward by its width",
    note: "Below the slanted line, a draft that is accepted in full saves time. At 1, width costs nothing.",
    series: curves.map((curve) => curve.name),
    draw: (width, isShown) => xyPlot(width, {
      height: 300,
      label: "cost of a forward by its width",
      x: { name: "width: tokens in one forward", format: whole, domain: [1, widest], isWhole: true },
      y: { name: "cost, in forwards of one token", format: number, domain: [0, dearest * 1.12] },
      rules: [{ y: 1, label: "plain: width 1" }, { line: [[1, 1], [widest, widest]], label: "no gain even if all is accepted", isDashed: true }],
      named: curves.length > 1 && curves.length < 6 && width > 640,
      series: shown(isShown).map((curve) => ({
        name: curve.name,
        points: curve.points.map((point) => ({
          x: point.width, y: point.ratio,
          tip: [`width ${point.width}`, `${times(point.ratio)} a forward of one`, milliseconds(1000 * point.seconds), `pays above ${fixed2(point.ratio)} tokens per forward`],
        })),
      })),
    }),
  });
}
