/** Show a model's Markdown. It is not trusted: what could load, run or style anything is taken out. */

import { Component, html, render, useMemo, useRef } from "../vendor/preact.js";
import highlighter from "../vendor/highlight.js";
import { Marked } from "../vendor/marked.js";
import purify from "../vendor/purify.js";
import { lexed, lexedFurther } from "./bounded.js";
import { CopyButton } from "./copy.js";
import { MATH, drawMath } from "./math.js";
import { paint, within } from "./origins.js";

const ALLOWED = {
  ALLOWED_TAGS: (
    "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i img li ol p pre s span strong sub sup table tbody td th thead tr ul"
  ).split(" "),
  ALLOWED_ATTR: ["href", "class", "start", "align", "src", "alt"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  // Pictures of other places would tell them who reads this.
  ADD_DATA_URI_TAGS: ["img"],
  ADD_URI_SAFE_ATTR: ["align", "start"],
};
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp|avif);base64,[a-z0-9+/=]+$/i;
const FENCE = /^ {0,3}(?:```|~~~)/;
const TASK = /^\s*[☐☑] /;
const LONGEST_HIGHLIGHTED = 20_000;
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: MATH,
  renderer: {
    // HTML in an answer is shown as text, not taken for a part of this page.
    html: ({ text }) => escaped(text),
    text: (token) => (token.isAsWritten ? `<span class="as-written">${escaped(token.text)}</span>` : false),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    image: ({ href, text }) =>
      PICTURE.test(href) ? `<img src="${href}" alt="${escaped(text)}">` : `<a href="${escaped(href)}">${escaped(text || "Picture")}</a>`,
  },
});

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "IMG" && !PICTURE.test(node.getAttribute("src") ?? "")) node.remove();
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

const DIRECTED = "p, li, h1, h2, h3, h4, h5, h6, td, th, blockquote";

/** Return an element that can be scrolled with the keyboard around another. */
function wrapped(inner, name, label) {
  const box = Object.assign(document.createElement("div"), { className: name });
  inner.replaceWith(box);
  box.append(inner);
  const scrolled = name === "code" ? inner : box;
  scrolled.tabIndex = 0;
  scrolled.setAttribute("role", "group");
  scrolled.setAttribute("aria-label", label);
  return box;
}

function finishCode(code) {
  const text = code.textContent;
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  if (text.length < LONGEST_HIGHLIGHTED && highlighter.getLanguage(language)) highlighter.highlightElement(code);
  const box = wrapped(code.parentElement, "code", "Code");
  const bar = Object.assign(document.createElement("div"), { className: "code-bar" });
  box.prepend(bar);
  render(html`<span>${language}</span><${CopyButton} text=${text} />`, bar);
}

/** One block of the text, drawn again only if it has changed: a long answer grows at its end. */
class Block extends Component {
  box = { current: null };

  shouldComponentUpdate({ source, isDone, runs, links }) {
    return source !== this.props.source || links !== this.props.links || isDone !== this.props.isDone || JSON.stringify(runs) !== JSON.stringify(this.props.runs);
  }

  componentDidMount() {
    this.draw();
  }

  componentDidUpdate() {
    this.draw();
  }

  async draw() {
    const { token, source, isDone, runs } = this.props;
    const box = this.box.current;
    // The browser's parser makes these elements, so the library that draws the page leaves them alone.
    box.innerHTML = purify.sanitize(marked.parser([token]), ALLOWED);
    for (const one of box.querySelectorAll(DIRECTED)) one.dir = "auto";
    for (const item of box.querySelectorAll("li")) if (TASK.test(item.textContent)) item.className = "task";
    for (const table of box.querySelectorAll("table")) wrapped(table, "scrolled", "Table");
    if (isDone) for (const code of box.querySelectorAll("pre > code")) finishCode(code);
    if (runs) paint(box, source, runs);
    if (!isDone && token.type === "mathBlock") return;
    await drawMath(box);
  }

  render() {
    return html`<div class="block" ref=${this.box}></div>`;
  }
}

/** Show what a reader wrote: as it is, with its fenced code as code. */
export function Said({ text }) {
  const parts = useMemo(() => {
    const found = [];
    for (const token of lexed(marked, text)) {
      const isCode = token.type === "code" && FENCE.test(token.raw);
      if (isCode || !found.length || found.at(-1).isCode) found.push({ isCode, token, raw: token.raw });
      else found.at(-1).raw += token.raw;
    }
    return found.filter(({ raw }) => raw.trim());
  }, [text]);
  return html`<div class="said">${parts.map(({ isCode, token, raw }, at) => (isCode
    ? html`<${Block} key=${at} token=${token} source=${raw} isDone=${true} runs=${null} />`
    : html`<p class="plain" dir="auto">${raw.trim()}</p>`))}</div>`;
}

/** isDone: no more text comes. runs: of the text, by what drafted them (see origins.js), or null for no colours. */
export function Markdown({ text, isDone, runs = null }) {
  const held = useRef(null);
  // Once it is complete it is read as a whole: a reference may be defined after the block that has it.
  held.current = useMemo(() => lexedFurther(marked, text, isDone ? null : held.current), [text, isDone]);
  const { tokens } = held.current;
  const links = isDone ? Object.keys(held.current.links).join() : "";
  let start = 0;
  const blocks = tokens.map((token, at) => {
    const from = start;
    start += token.raw.length;
    if (token.type === "space") return null;
    const isLast = at === tokens.length - 1;
    return html`<${Block} key=${at} token=${token} source=${token.raw} isDone=${isDone || !isLast} links=${links} runs=${runs && within(runs, from, start)} />`;
  });
  return html`<div class="markdown">${blocks}</div>`;
}
