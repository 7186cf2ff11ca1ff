/** A button that copies a text, and says so. */

import { html, useState } from "../vendor/preact.js";

const SHOWN_MS = 1200;

/** Put a text into the clipboard; return whether the browser let us. */
async function put(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have the clipboard over HTTPS and on this machine only; elsewhere they copy what is selected.
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

export function CopyButton({ text }) {
  const [label, setLabel] = useState("Copy");
  async function copy() {
    setLabel((await put(text)) ? "Copied" : "Not allowed");
    setTimeout(() => setLabel("Copy"), SHOWN_MS);
  }
  return html`<button type="button" class="quiet copy" onClick=${copy}>${label}</button>`;
}
