/** Show a model's Markdown. It is not trusted: what could load, run or style anything is taken out. */

import { html, render, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import highlighter from "./vendor/highlight.js";
import { marked } from "./vendor/marked.js";
import purify from "./vendor/purify.js";

const ALLOWED = {
  ALLOWED_TAGS: (
    "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i li ol p pre s strong sub sup table tbody td th thead tr ul"
  ).split(" "),
  ALLOWED_ATTR: ["href", "class", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};
// HTML in an answer is shown as text, not taken for a part of this page.
marked.use({ gfm: true, breaks: true, renderer: { html: ({ text }) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;") } });
const LONGEST_HIGHLIGHTED = 20_000;
const SHOWN_MS = 1200;

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

/** isDone: no more text comes, so code can be highlighted. */
export function Markdown({ text, isDone }) {
  const box = useRef(null);
  const safe = useMemo(() => purify.sanitize(marked.parse(text), ALLOWED), [text]);
  useEffect(() => {
    // The browser's parser made these elements, so the library that draws the page leaves them alone.
    box.current.innerHTML = safe;
    if (!isDone) return;
    for (const code of box.current.querySelectorAll("pre > code")) {
      const shown = code.textContent;
      if (shown.length < LONGEST_HIGHLIGHTED) highlighter.highlightElement(code);
      code.parentElement.tabIndex = 0;
      const place = document.createElement("span");
      code.parentElement.append(place);
      render(html`<${CopyButton} text=${shown} />`, place);
    }
  }, [safe, isDone]);
  return html`<div class="markdown" ref=${box}></div>`;
}

/** A button that copies a text, and says so. */
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
