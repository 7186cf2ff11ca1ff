/** A button that copies a text, and says so. */

import { html, useState } from "../vendor/preact.js";

const SHOWN_MS = 1200;

export function CopyButton({ text }) {
  const [label, setLabel] = useState("Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setLabel("Copied");
    } catch {
      // Browsers allow it over HTTPS and on this machine only.
      setLabel("Not allowed");
    }
    setTimeout(() => setLabel("Copy"), SHOWN_MS);
  }
  return html`<button type="button" class="quiet copy" onClick=${copy}>${label}</button>`;
}
