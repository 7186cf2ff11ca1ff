// Points and lines over two axes, with reference lines, bands, intervals, and names at the ends of lines.
import { isNumber, svg } from "./dom.js";
import { cut, short } from "./format.js";
import { binaryLog, extent, linear } from "./scale.js";
import { shape, slotOf } from "./series.js";
import { tip } from "./tooltip.js";

const LETTER = 6.3;

/**
 * x, y: {name, format, domain, isLog, isWhole, ticks}. series: {name, label, points: [{x, y, low, high, tip}], isLine,
 * isDashed, hasMarks}. rules: {x, y or line: [[x, y], [x, y]], label, isDashed, slot}. bands: {from, to, slot}
 * along x. named: whether the names of series are written at their ends.
 */
export function xyPlot(width, { height = 220, x: xAxis, y: yAxis, series, rules = [], bands = [], named = false, label }) {
  const points = series.flatMap((one) => one.points).filter((point) => isNumber(point.x) && isNumber(point.y));
  const yDomain = yAxis.domain ?? extent(points.flatMap((point) => [point.y, point.low, point.high].filter(isNumber)), 0.06, rules.map((rule) => rule.y).filter(isNumber));
  const xDomain = xAxis.domain ?? extent(points.map((point) => point.x), 0.03);
  const ends = named ? Math.min(width * 0.32, 16 + LETTER * Math.max(4, ...series.map((one) => (one.label ?? one.name).length))) : 12;
  const yTicks = linear(yDomain, [0, 1]).ticks(Math.max(2, Math.round(height / 48)));
  const left = 10 + LETTER * Math.max(...yTicks.map((tick) => short(yAxis.format(tick)).length), 2);
  // Names of vertical rules are placed between the axis name and the plot.
  const top = rules.some((rule) => isNumber(rule.x) && rule.label) ? 40 : 24;
  const box = { left, right: width - ends, top, bottom: height - 38, width };
  const x = (xAxis.isLog ? binaryLog : linear)(xDomain, [box.left + 6, box.right - 6]);
  const y = linear(yDomain, [box.bottom, box.top]);
  const plot = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label ?? `${yAxis.name} by ${xAxis.name}` });
  drawAxes(plot, box, x, y, xAxis, yAxis, yTicks);
  for (const band of bands) {
    const [from, to] = [band.from, band.to].map((value) => Math.max(box.left, Math.min(box.right, x(value))));
    plot.append(svg("rect", { class: `band slot-${band.slot}`, "data-series": band.series ?? null, x: from, y: box.top, width: Math.max(1, to - from), height: box.bottom - box.top }));
  }
  for (const rule of rules) drawRule(plot, box, x, y, rule);
  for (const one of series) drawSeries(plot, box, x, y, one);
  if (named) nameEnds(plot, box, x, y, series);
  return plot;
}

function drawAxes(plot, box, x, y, xAxis, yAxis, yTicks) {
  plot.append(svg("text", { class: "axis-name", x: 0, y: 11 }, yAxis.name));
  for (const tick of yTicks) {
    plot.append(
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "tick", x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(yAxis.format(tick))));
  }
  const most = Math.max(2, Math.round((box.right - box.left) / 52));
  const given = xAxis.ticks && xAxis.ticks.filter((_, at) => at % Math.ceil(xAxis.ticks.length / most) === 0);
  for (const tick of given ?? x.ticks(most).filter((value) => !xAxis.isWhole || Number.isInteger(value))) {
    plot.append(
      svg("line", { class: "tick-mark", x1: x(tick), x2: x(tick), y1: box.bottom, y2: box.bottom + 4 }),
      svg("text", { class: "tick", x: x(tick), y: box.bottom + 16, "text-anchor": "middle" }, short(xAxis.format(tick))));
  }
  plot.append(
    svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { class: "axis-name", x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle" }, xAxis.name));
}

function drawRule(plot, box, x, y, rule) {
  let ends = rule.line?.map(([a, b]) => [x(a), y(b)]);
  if (isNumber(rule.y)) ends = [[box.left, y(rule.y)], [box.right, y(rule.y)]];
  if (isNumber(rule.x)) ends = [[x(rule.x), box.bottom], [x(rule.x), box.top]];
  ends = clipped(ends, box);
  if (!ends) return;
  const [[x1, y1], [x2, y2]] = ends;
  const name = isNumber(rule.slot) ? `rule slot-${rule.slot}` : "reference";
  plot.append(svg("line", { class: name + (rule.isDashed ? " dashed" : ""), x1, y1, x2, y2, "data-series": rule.series ?? null }));
  if (!rule.label) return;
  const isUpright = isNumber(rule.x);
  // If a line leaves the plot at the top, its name is placed next to that end, not at the right edge.
  const isSteep = !isUpright && x2 < (box.left + box.right) / 2;
  plot.append(svg("text", {
    class: isNumber(rule.slot) ? `rule-name slot-${rule.slot}` : "reference-name",
    x: isUpright ? x1 : isSteep ? x2 + 6 : x2 - 2, y: isUpright ? box.top - 5 : isSteep ? y2 + 10 : Math.max(box.top + 8, y2 - 5),
    "text-anchor": isUpright ? "middle" : isSteep ? "start" : "end",
  }, rule.label));
}

// The part of a line between the bottom and the top of the plot.
function clipped(ends, box) {
  let [[x1, y1], [x2, y2]] = ends;
  const [low, high] = [box.top, box.bottom];
  if (Math.max(y1, y2) < low || Math.min(y1, y2) > high) return null;
  const cut = (xa, ya, xb, yb) => {
    const to = Math.max(low, Math.min(high, ya));
    return to === ya ? [xa, ya] : [xa + ((xb - xa) * (to - ya)) / (yb - ya), to];
  };
  const [first, last] = [cut(x1, y1, x2, y2), cut(x2, y2, x1, y1)];
  return [first, last];
}

function drawSeries(plot, box, x, y, one) {
  const slot = slotOf(one.name);
  const drawable = one.points.filter((point) => isNumber(point.x) && isNumber(point.y));
  const group = svg("g", { "data-series": one.name });
  if (one.isLine !== false && drawable.length > 1) {
    const path = drawable.map((point, at) => `${at ? "L" : "M"}${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`).join("");
    group.append(svg("path", { class: `line slot-${slot}${one.isDashed ? " dashed" : ""}`, d: path }));
  }
  for (const point of drawable) {
    if (isNumber(point.low) && isNumber(point.high)) {
      group.append(svg("line", { class: `whisker slot-${slot}`, x1: x(point.x), x2: x(point.x), y1: y(point.low), y2: y(point.high) }));
    }
    if (one.hasMarks === false) continue;
    const mark = svg("g", {},
      svg("circle", { class: "target", cx: x(point.x), cy: y(point.y), r: 9 }),
      shape(slot, x(point.x), y(point.y), drawable.length > 24 ? 0.55 : 0.75));
    group.append(point.tip ? tip(mark, point.tip) : mark);
  }
  plot.append(group);
}

function nameEnds(plot, box, x, y, series) {
  const names = series.flatMap((one) => {
    const last = one.points.findLast((point) => isNumber(point.x) && isNumber(point.y));
    return last ? [{ one, y: y(last.y), x: x(last.x) }] : [];
  }).sort((a, b) => a.y - b.y);
  // Overlapping names move down; if the last one then leaves the plot, all move up.
  names.forEach((name, at) => {
    for (const above of names.slice(0, at)) {
      if (Math.abs(above.x - name.x) < 90 && name.y < above.y + 14) name.y = above.y + 14;
    }
  });
  const over = (names.at(-1)?.y ?? 0) - (box.bottom + 8);
  if (over > 0) for (const name of names) name.y -= over;
  for (const { one, y: at, x: end } of names) {
    plot.append(svg("text", { class: `end-name slot-${slotOf(one.name)}`, "data-series": one.name, x: Math.min(end, box.right) + 10, y: at + 4 }, cut(one.label ?? one.name, (box.width - box.right) / LETTER)));
  }
}
