/** The tokens a second of the last two minutes, as a chart with its scale. */

import { html } from "../vendor/preact.js";

export const SPAN_S = 120;
/** Of the drawing, which is stretched to its place. */
const WIDTH = 1200;
const HEIGHT = 100;
/** A longer pause between two looks is a gap in the line: nothing was measured while the tab was left. */
const GAP_MS = 4000;

/** Return the next of 2, 4, 10, 20, 40, 100 ... from a number on, whose half is a whole number too. */
export function roundUp(value) {
  const power = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(value, 1))));
  return [2, 4, 10, 20].map((step) => step * power).find((step) => step >= value);
}

/** points: [{at, rate}], at in milliseconds, the newest last. */
export function Chart({ points }) {
  const newest = points.at(-1)?.at ?? 0;
  const highest = Math.max(0, ...points.map(({ rate }) => rate));
  const top = roundUp(Math.max(highest, 4));
  const x = (at) => WIDTH * (1 - (newest - at) / 1000 / SPAN_S);
  const y = (rate) => HEIGHT * (1 - rate / top);
  const lines = [];
  for (const [i, { at, rate }] of points.entries()) {
    if (!i || at - points[i - 1].at > GAP_MS) lines.push([]);
    lines.at(-1).push([x(at).toFixed(1), y(rate).toFixed(1)]);
  }
  const joined = (line) => line.map((point) => point.join(",")).join(" ");
  const label = `Tokens a second in the last two minutes: now ${(points.at(-1)?.rate ?? 0).toFixed(0)}, at most ${highest.toFixed(0)}`;
  return html`<figure class="chart"><figcaption>Tokens a second in the last two minutes</figcaption>
    <div class="plot">
      <div class="scale-y" aria-hidden="true">${[top, top / 2, 0].map((value) => html`<span>${value.toLocaleString("en")}</span>`)}</div>
      <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}>
        ${[0, 50, 100].map((at) => html`<line class="grid" x1="0" x2=${WIDTH} y1=${at} y2=${at} />`)}
        ${lines.map((line) => html`<polygon points=${`${line[0][0]},${HEIGHT} ${joined(line)} ${line.at(-1)[0]},${HEIGHT}`} /><polyline points=${joined(line)} />`)}
      </svg>
      <div class="scale-x" aria-hidden="true">${["2 min ago", "1 min ago", "now"].map((text) => html`<span>${text}</span>`)}</div>
    </div></figure>`;
}
