/** One message of a chat: what was said, thought and called, and where the text comes from. */

import { html, useState } from "./vendor/preact.js";
import { describe } from "./answer.js";
import { CopyButton, Markdown } from "./markdown.js";

/** What drafted a token, with the words of the legend. The colours are in style.css, by the same names. */
export const SOURCES = {
  model: "the model itself",
  suffix: "copied from earlier text",
  "ngram-simple": "n-gram of this text",
  "ngram-mod": "shared n-gram table",
  prediction: "your prediction",
  grammar: "forced by the grammar",
  "draft-model": "draft model",
  mtp: "MTP head",
  dflash: "DFlash head",
  wedlm: "masks of the model",
};

function Origins({ trace }) {
  const used = [...new Set(trace.map(({ source }) => source))];
  const named = (source) => SOURCES[source] ?? source;
  return html`<div class="origins">
    <pre class="traced" tabindex="0">${trace.map(({ text, source }) => html`<span class=${`from ${source}`} title=${named(source)}>${text}</span>`)}</pre>
    <ul class="legend" aria-label="Sources">${used.map((source) => html`<li class=${`from ${source}`}>${named(source)}</li>`)}</ul>
  </div>`;
}

/** message: an answer, or {role, content}. showsOrigins: as coloured text. children: its buttons. */
export function Message({ message, showsOrigins, isDone = true, children }) {
  const { role, content, reasoning, calls = [], trace = [], notice, fault } = message;
  const figures = message.timings ? describe(message, isDone) : "";
  return html`<article class=${`message ${role}`} aria-label=${role}>
    ${reasoning && html`<details class="thought" open=${!content && !isDone}><summary>Thinking</summary><p>${reasoning}</p></details>`}
    ${showsOrigins && trace.length
      ? html`<${Origins} trace=${trace} />`
      : role === "assistant"
        ? html`<${Markdown} text=${content} isDone=${isDone} />`
        : html`<p class="plain">${content}</p>`}
    ${calls.map(({ name, input }) => html`<details class="call" open><summary>Calls <code>${name}</code></summary><pre tabindex="0">${input}</pre></details>`)}
    ${notice && html`<p class="notice" role="status">${notice}</p>`}
    ${fault && html`<p class="fault" role="alert">${fault}</p>`}
    <footer><span class="figures">${figures}</span>${isDone && content && html`<${CopyButton} text=${content} />`}${children}</footer>
  </article>`;
}

/** A field to write in, sent with Enter. start: its first text. isKept: whether the text stays when it is sent. */
export function Composer({ label, action = "Send", onSend, isBusy, onStop, start = "", isKept }) {
  const [text, setText] = useState(start);
  const submit = (event) => {
    event.preventDefault();
    if (!text.trim() || isBusy) return;
    onSend(text);
    if (!isKept) setText("");
  };
  const isSent = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;
  return html`<form class="composer" onSubmit=${submit}>
    <textarea aria-label=${label} placeholder=${`${label} (Enter sends, Shift+Enter begins a line)`} rows="3" value=${text}
      onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => isSent(event) && submit(event)}></textarea>
    ${isBusy
      ? html`<button type="button" onClick=${onStop}>Stop</button>`
      : html`<button type="submit" disabled=${!text.trim()}>${action}</button>`}
  </form>`;
}
