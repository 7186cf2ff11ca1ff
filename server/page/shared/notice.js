/** One line at the bottom of the page: what was just done, and how to undo it. It leaves by itself. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { Observed, useObserved } from "./observed.js";

const SHOWN_MS = 15_000;
const notice = new Observed(null);

/** Show a line. undo: called if the reader wants it undone; null if it cannot be. isOfShown: whether that changes the chat that is shown. */
export const tell = (text, undo = null, isOfShown = false) => notice.set({ text, undo, isOfShown });

/** Take back an offer to undo something in the chat that is shown: it was left, or goes on. */
export const withdraw = () => notice.value?.isOfShown && notice.set(null);

export function Notice() {
  const now = useObserved(notice);
  const [isHeld, setHeld] = useState(false);
  const close = () => notice.set(null);
  useEffect(() => {
    // Whoever is at it may still want to undo something.
    if (!now || isHeld) return;
    const timer = setTimeout(close, SHOWN_MS);
    return () => clearTimeout(timer);
  }, [now, isHeld]);
  useEffect(() => setHeld(false), [now]);
  return html`<div class="notice-place" role="status">${now && html`<div class="toast" onMouseEnter=${() => setHeld(true)} onMouseLeave=${() => setHeld(false)}
      onFocusIn=${() => setHeld(true)} onFocusOut=${() => setHeld(false)}><span>${now.text}</span>
    ${now.undo && html`<button onClick=${() => { close(); now.undo(); }}>Undo</button>`}
    <button class="quiet" aria-label="Close" onClick=${close}>✕</button></div>`}</div>`;
}
