/** One line at the bottom of the page: what was just done, and how to undo it. */

import { html } from "../vendor/preact.js";
import { Observed, useObserved } from "./observed.js";

const notice = new Observed(null);

/** Show a line. undo: called if the reader wants it undone; null if it cannot be. */
export const tell = (text, undo = null) => notice.set({ text, undo });

export function Notice() {
  const now = useObserved(notice);
  const close = () => notice.set(null);
  const undo = () => {
    close();
    now.undo();
  };
  return html`<div class="notice-place" role="status">${now && html`<div class="toast"><span>${now.text}</span>
    ${now.undo && html`<button onClick=${undo}>Undo</button>`}
    <button class="quiet" aria-label="Close" onClick=${close}>✕</button></div>`}</div>`;
}
