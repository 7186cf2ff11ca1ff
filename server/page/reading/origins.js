/** Where an answer's text comes from, as colours of the rendered text. A run: {start, end, source}, of characters. */

import { html } from "../vendor/preact.js";

/** What drafted a token, with the words of the legend. The colours are in style/reading.css, by the same names. */
export const SOURCES = {
  model: "the model itself",
  suffix: "copied from earlier text",
  "ngram-simple": "n-gram of this text",
  "ngram-mod": "shared n-gram table",
  prediction: "your prediction",
  grammar: "forced by the grammar",
  "draft-model": "draft model",
  mtp: "MTP head",
  eagle3: "EAGLE-3 head",
  dflash: "DFlash head",
  wedlm: "masks of the model",
};
const named = (source) => SOURCES[source] ?? source;

/** Return the runs of a text within what the model wrote, which may have more: markers, thoughts, calls; null if it is not there.
 *
 * trace: [{text, source}], all that the model wrote.
 */
export function runsOf(trace, text) {
  const all = trace.map((one) => one.text).join("");
  const base = text ? all.lastIndexOf(text) : -1;
  if (base < 0) return null;
  let at = -base;
  const runs = trace.map((one) => ({ start: at, end: (at += one.text.length), source: one.source }));
  return within(runs, 0, text.length);
}

/** Return the runs between two places, counted from the first. */
export const within = (runs, from, to) =>
  runs
    .filter(({ start, end }) => end > from && start < to)
    .map(({ start, end, source }) => ({ start: Math.max(start, from) - from, end: Math.min(end, to) - from, source }));

/** Colour what was rendered of a Markdown text. The rendered text is in the order of its source, which also has marks. */
export function paint(box, source, runs) {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, {
    acceptNode: (node) => (node.classList?.contains("code-bar") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT),
  });
  const found = [];
  let cursor = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeType !== Node.TEXT_NODE) continue;
    const places = placesOf(node.data, source, cursor);
    cursor = places.end;
    // The address of a link is not shown, and has words that the text after it may have, too.
    if (node.parentElement.closest("a") && source.startsWith("](", cursor)) cursor = source.indexOf(")", cursor) + 1 || cursor;
    found.push([node, places.at]);
  }
  for (const [node, at] of found) replace(node, at, runs);
}

/** Return where each character of a rendered text is in its source, -1 for those that are not, and where to go on. */
export function placesOf(text, source, cursor) {
  const at = new Array(text.length).fill(-1);
  let end = cursor;
  const found = (start, piece) => {
    const place = source.indexOf(piece, end);
    if (place < 0) return false;
    for (let i = 0; i < piece.length; i++) at[start + i] = place + i;
    end = place + piece.length;
    return true;
  };
  // Whole lines first: a long piece is found where it is, a short one anywhere.
  for (const { 0: line, index } of text.matchAll(/[^\n]*\S/g)) {
    if (found(index, line)) continue;
    for (const { 0: word, index: start } of line.matchAll(/\S+/g)) found(index + start, word);
  }
  return { at, end };
}

/** Put spans in the place of a text node, one for each stretch of one source. Spaces are with what is before them. */
function replace(node, at, runs) {
  const pieces = [];
  let last = null;
  let run = 0;
  for (let i = 0; i < node.data.length; i++) {
    // Places only grow, so the runs before are done with.
    while (at[i] >= 0 && run < runs.length - 1 && runs[run].end <= at[i]) run++;
    const isFound = at[i] >= 0 && run < runs.length && runs[run].start <= at[i] && at[i] < runs[run].end;
    const source = isFound ? runs[run].source : at[i] < 0 ? last : null;
    if (pieces.length && source === last) pieces.at(-1).text += node.data[i];
    else pieces.push({ text: node.data[i], source });
    last = source;
  }
  if (node.parentElement.classList.contains("math")) {
    const first = pieces.find(({ source }) => source);
    if (first) node.parentElement.classList.add("from", first.source);
    return;
  }
  const span = (text, source) => Object.assign(document.createElement("span"), { className: `from ${source}`, title: named(source), textContent: text });
  node.replaceWith(...pieces.map(({ text, source }) => (source ? span(text, source) : text)));
}

/** The sources of an answer and their colours. */
export function Legend({ trace }) {
  const used = [...new Set(trace.map(({ source }) => source))];
  return html`<ul class="legend" aria-label="Sources">${used.map((source) => html`<li><span class=${`swatch from ${source}`}></span>${named(source)}</li>`)}</ul>`;
}

/** All that a model wrote, coloured, where it cannot be found in the rendered text. */
export const Traced = ({ trace }) =>
  html`<pre class="traced" tabindex="0">${trace.map(({ text, source }) => html`<span class=${`from ${source}`} title=${named(source)}>${text}</span>`)}</pre>`;
