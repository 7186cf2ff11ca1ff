/** The tokens a second of the last two minutes, as a chart with its scale. */

import { html } from "../vendor/preact.js";

export const SPAN_S = 120;
const WIDTH = 960;
const HEIGHT = 180;
const LEFT = 48;
const BOTTOM = 24;
const TOP = 10;
const GAP_S = 4;

/** Return the next of 1, 2, 5, 10, 20 ... from a number on. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** points: [{at, rate}], at in milliseconds, the newest last. */
export function Chart({ points }) {
  const newest = points.at(-1)?.at ?? 0;
  const most = roundUp(Math.max(4, ...points.map(({ rate }) => rate)));
  const x = (at) => LEFT + ((WIDTH - LEFT) * (SPAN_S - (newest - at) / 1000)) / SPAN_S;
  const y = (rate) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - rate / most);
  // While the tab was left, nothing was measured: there the line has a gap.
  const lines = [];
  for (const [i, point] of points.entries()) {
    if (!i || point.at - points[i - 1].at > GAP_S * 1000) lines.push([]);
    lines.at(-1).push(`${x(point.at).toFixed(1)},${y(point.rate).toFixed(1)}`);
  }
  const last = points.at(-1);
  const label = `Tokens a second in the last two minutes: now ${last ? last.rate.toFixed(0) : 0}, at most ${Math.max(0, ...points.map(({ rate }) => rate)).toFixed(0)}`;
  return html`<figure class="chart"><figcaption>Tokens a second, last two minutes</figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${label}>
      ${[0, 0.5, 1].map((share) => html`<line class="grid" x1=${LEFT} x2=${WIDTH} y1=${y(share * most)} y2=${y(share * most)} />
        <text class="scale" x=${LEFT - 8} y=${y(share * most) + 4} text-anchor="end">${share * most}</text>`)}
      ${[120, 90, 60, 30, 0].map((ago) => html`<text class="scale" x=${x(newest - ago * 1000)} y=${HEIGHT - 4}
        text-anchor=${ago === 120 ? "start" : ago ? "middle" : "end"}>${ago ? `${ago} s ago` : "now"}</text>`)}
      ${lines.map((line) => html`<polygon points=${`${line[0].split(",")[0]},${y(0)} ${line.join(" ")} ${line.at(-1).split(",")[0]},${y(0)}`} />
        <polyline points=${line.join(" ")} />`)}
    </svg></figure>`;
}
