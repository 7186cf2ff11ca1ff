/** Chat with a model. The conversation stays in this browser. */

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { ask, newAnswer } from "./answer.js";
import { Composer, Message } from "./message.js";
import { Parameters, requestOf, useStored } from "./parameters.js";

export function Chat({ models, onFault }) {
  const [parameters, setParameters] = useStored("reprise.parameters", { system: "", temperature: "", max_tokens: "", seed: "" });
  const [messages, setMessages] = useStored("reprise.chat", []);
  const [answer, setAnswer] = useState(null);
  const [showsOrigins, setShowsOrigins] = useStored("reprise.origins", false);
  const [draft, setDraft] = useState("");
  const running = useRef(null);
  const end = useRef(null);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [messages, answer]);

  async function run(history) {
    setMessages(history);
    const stop = (running.current = new AbortController());
    let last = newAnswer();
    setAnswer(last);
    try {
      const body = { ...requestOf(parameters, history), draft: { trace: true } };
      for await (last of ask(body, stop.signal)) setAnswer(last);
    } catch (fault) {
      if (fault.name !== "AbortError") {
        last = { ...last, fault: fault.message };
        onFault(fault);
      }
    }
    running.current = null;
    setAnswer(null);
    setMessages([...history, last]);
  }

  const buttons = (at) => (messages[at].role === "user"
    ? html`<button class="quiet" disabled=${!!answer} onClick=${() => { setDraft(messages[at].content); setMessages(messages.slice(0, at)); }}>Edit</button>`
    : html`<button class="quiet" disabled=${!!answer} onClick=${() => run(messages.slice(0, at))}>Retry</button>`);

  return html`<section class="chat">
    <${Parameters} models=${models} value=${parameters} onChange=${setParameters} />
    <div class="messages" role="log" aria-live="polite">
      ${!messages.length && !answer && html`<p class="empty">Ask something. Colours can show which words were drafted, and by what.</p>`}
      ${messages.map((message, at) => html`<${Message} message=${message} showsOrigins=${showsOrigins}>${buttons(at)}<//>`)}
      ${answer && html`<${Message} message=${answer} showsOrigins=${showsOrigins} isDone=${false} />`}
      <div ref=${end}></div>
    </div>
    <${Composer} key=${draft} start=${draft} label="Message" isBusy=${!!answer}
      onSend=${(text) => { setDraft(""); run([...messages, { role: "user", content: text }]); }} onStop=${() => running.current?.abort()} />
    <p class="row">
      <label><input type="checkbox" checked=${showsOrigins} onChange=${(event) => setShowsOrigins(event.target.checked)} /> Show where the text comes from</label>
      <button class="quiet" disabled=${!!answer || !messages.length} onClick=${() => setMessages([])}>New chat</button>
    </p>
  </section>`;
}
