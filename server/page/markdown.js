/** Show a model's Markdown. It is not trusted: what could load, run or style anything is taken out. */

import { html, useEffect, useMemo, useRef } from "./vendor/preact.js";
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
const LONGEST_HIGHLIGHTED = 20_000;

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

/** isDone: no more text comes, so code can be highlighted. */
export function Markdown({ text, isDone }) {
  const box = useRef(null);
  const safe = useMemo(() => purify.sanitize(marked.parse(text, { gfm: true, breaks: true }), ALLOWED), [text]);
  useEffect(() => {
    if (!isDone) return;
    for (const code of box.current.querySelectorAll("pre > code")) {
      if (code.textContent.length < LONGEST_HIGHLIGHTED) highlighter.highlightElement(code);
      code.parentElement.append(copyButton(code.textContent));
    }
  }, [safe, isDone]);
  return html`<div class="markdown" ref=${box} dangerouslySetInnerHTML=${{ __html: safe }}></div>`;
}

function copyButton(text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", () => copy(text, button));
  return button;
}

/** Copy a text, and say so on the button. */
export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1200);
}
