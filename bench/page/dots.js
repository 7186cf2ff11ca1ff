// A Cleveland dot plot: one band per row, one lane in it per series, values in a column on the right.
import { isNumber, svg } from "./dom.js";
import { cut, short } from "./format.js";
import { extent, linear } from "./scale.js";
import { shape, slotOf } from "./series.js";
import { tip } from "./tooltip.js";

const LANE = 15;
const BETWEEN = 10;
const TOP = 42;
const LETTER = 6.7;

/**
 * rows: {label, sub, points: [{series, value, low, high, best, tip}]}; low and high draw a whisker, best a small
 * upright mark. hasStems: whether lines run from the reference to the dots. axis: its name. reference: the value of
 * plain decoding, labelled with referenceLabel.
 */
export function dotPlot(width, { rows, axis, format, reference, referenceLabel = "plain", domain, label, hasStems = true }) {
  const numbers = rows.flatMap((row) => row.points.flatMap((point) => [point.value, point.low, point.high, point.best])).filter(isNumber);
  const longest = Math.max(...rows.map((row) => Math.max(row.label.length, (row.sub ?? "").length * 0.9)));
  const isNarrow = width < 520;
  const left = isNarrow ? 10 : Math.min(longest * LETTER + 22, width * 0.38);
  const right = width - 74;
  const x = linear(domain ?? extent(numbers, 0.04, isNumber(reference) ? [reference] : []), [left, right]);
  const head = isNarrow ? 18 : 0;
  const lanes = (row) => Math.max(row.sub && !isNarrow ? 2 : 1, row.points.length);
  const heightOf = (row) => head + lanes(row) * LANE + BETWEEN;
  const height = TOP + rows.reduce((sum, row) => sum + heightOf(row), 0) + 6;
  const plot = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label ?? axis });
  drawAxis(plot, x, { left, right, height, axis, format, reference, referenceLabel });
  let y = TOP;
  for (const row of rows) {
    const rowHeight = heightOf(row);
    drawRow(plot, row, { x, y, rowHeight, head, left, width, reference, format, isNarrow, hasStems });
    y += rowHeight;
  }
  return plot;
}

function drawAxis(plot, x, { left, right, height, axis, format, reference, referenceLabel }) {
  plot.append(svg("text", { class: "axis-name", x: left, y: 11 }, axis));
  const at = isNumber(reference) ? x(reference) : -1000;
  for (const tick of x.ticks(Math.max(2, Math.round((right - left) / 90)))) {
    plot.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: TOP - 6, y2: height - 6 }));
    if (Math.abs(x(tick) - at) > 40) plot.append(svg("text", { class: "tick", x: x(tick), y: TOP - 11, "text-anchor": "middle" }, short(format(tick))));
  }
  if (at < 0) return;
  plot.append(
    svg("line", { class: "reference", x1: at, x2: at, y1: TOP - 6, y2: height - 6 }),
    svg("text", { class: "reference-name", x: at, y: TOP - 11, "text-anchor": at - left < 20 ? "start" : "middle" }, `${referenceLabel} ${short(format(reference))}`));
}

function drawRow(plot, row, { x, y, rowHeight, head, left, width, reference, format, isNarrow, hasStems }) {
  const middle = y + head + (rowHeight - head - BETWEEN) / 2;
  plot.append(svg("line", { class: "row-line", x1: 0, x2: width, y1: y + rowHeight - BETWEEN / 2, y2: y + rowHeight - BETWEEN / 2 }));
  plot.append(isNarrow
    ? svg("text", { class: "row-name", x: 0, y: y + 13 }, cut(row.label, width / LETTER),
      row.sub && svg("tspan", { class: "row-sub", dx: 8 }, row.sub))
    : svg("text", { class: "row-name", x: 0, y: middle + (row.sub ? -1 : 4) }, cut(row.label, left / LETTER)));
  if (row.sub && !isNarrow) plot.append(svg("text", { class: "row-sub", x: 0, y: middle + 13 }, row.sub));
  const most = Math.max(...row.points.map((point) => point.value ?? -Infinity));
  row.points.forEach((point, lane) => {
    if (!isNumber(point.value)) return;
    const at = middle + (lane + 0.5 - row.points.length / 2) * LANE;
    const slot = slotOf(point.series);
    const group = svg("g", { "data-series": point.series });
    const from = isNumber(reference) ? x(reference) : x.domain[0] === 0 ? left : null;
    const hasWhisker = isNumber(point.low) && isNumber(point.high);
    if (from !== null && hasStems) group.append(svg("line", { class: `stem slot-${slot}`, x1: from, x2: x(point.value), y1: at, y2: at }));
    if (hasWhisker) group.append(svg("line", { class: `whisker slot-${slot}`, x1: x(point.low), x2: x(point.high), y1: at, y2: at }));
    if (isNumber(point.best)) group.append(svg("line", { class: "best", x1: x(point.best), x2: x(point.best), y1: at - 5, y2: at + 5 }));
    const mark = svg("g", {}, svg("rect", { class: "target", x: x(point.value) - 12, y: at - LANE / 2, width: 24, height: LANE }), shape(slot, x(point.value), at, 0.95));
    const value = svg("text", { class: point.value === most && row.points.length > 1 ? "value most" : "value", x: width - 2, y: at + 4, "text-anchor": "end" }, format(point.value));
    group.append(tip(mark, point.tip), value);
    plot.append(group);
  });
}
