/** A table that is one card for each row on a phone. */

import { html } from "../vendor/preact.js";

/** columns: [{name, isNumber}]. rows: of cells. */
export function Table({ caption, columns, rows, nothing }) {
  const cell = (value, at) => html`<td data-name=${columns[at].name} class=${columns[at].isNumber ? "number" : ""}>${value}</td>`;
  return html`<div class="scrolled" tabindex="0" role="group" aria-label=${caption}><table class="cards"><caption>${caption}</caption>
    <thead><tr>${columns.map(({ name, isNumber }) => html`<th scope="col" class=${isNumber ? "number" : ""}>${name}</th>`)}</tr></thead>
    <tbody>${rows.length ? rows.map((row) => html`<tr>${row.map(cell)}</tr>`) : html`<tr><td colspan=${columns.length}>${nothing}</td></tr>`}</tbody>
  </table></div>`;
}

export const text = (name) => ({ name, isNumber: false });
export const number = (name) => ({ name, isNumber: true });
