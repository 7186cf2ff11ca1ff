/** One message of a chat: what was said, thought and called, and where the text comes from. */

import { html, useState } from "./vendor/preact.js";
import { describe } from "./answer.js";
import { Markdown } from "./markdown.js";

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

export function Origins({ trace }) {
  const used = [...new Set(trace.map((run) => run.source))];
  return html`<div class="origins">
    <pre class="traced">${trace.map(({ text, source }) => html`<span class=${`from ${source}`} title=${SOURCES[source] ?? source}>${text}</span>`)}</pre>
    <ul class="legend">${used.map((source) => html`<li class=${`from ${source}`}>${SOURCES[source] ?? source}</li>`)}</ul>
  </div>`;
}

export function Calls({ calls }) {
  return calls.map(
    ({ name, input }) => html`<details class="call"><summary>calls <code>${name}</code></summary><pre>${input}</pre></details>`,
  );
}

/** message: an answer, or {role, content}. showsOrigins: as coloured text. children: its buttons. */
export function Message({ message, showsOrigins, isDone = true, children }) {
  const { role, content, reasoning, calls = [], trace = [], notice } = message;
  const figures = message.timings ? describe(message) : "";
  return html`<article class=${`message ${role}`} aria-label=${role}>
    ${reasoning && html`<details class="thought" open=${!content && !isDone}><summary>Thinking</summary><p>${reasoning}</p></details>`}
    ${showsOrigins && trace.length
      ? html`<${Origins} trace=${trace} />`
      : role === "assistant"
        ? html`<${Markdown} text=${content} isDone=${isDone} />`
        : html`<p class="plain">${content}</p>`}
    <${Calls} calls=${calls} />
    ${notice && html`<p class="notice" role="status">${notice}</p>`}
    ${message.fault && html`<p class="fault" role="alert">${message.fault}</p>`}
    <footer>${figures && html`<span class="figures">${figures}</span>`}${children}</footer>
  </article>`;
}

/** A field to write in, sent with Enter. */
export function Composer({ label, onSend, isBusy, onStop, start = "" }) {
  const [text, setText] = useState(start);
  const sendIt = () => {
    if (!text.trim() || isBusy) return;
    onSend(text);
    setText("");
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); sendIt(); }}>
    <textarea
      aria-label=${label} placeholder=${label} rows="3" value=${text}
      onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); sendIt(); } }}
    ></textarea>
    ${isBusy
      ? html`<button type="button" onClick=${onStop}>Stop</button>`
      : html`<button type="submit" disabled=${!text.trim()}>Send</button>`}
  </form>`;
}
