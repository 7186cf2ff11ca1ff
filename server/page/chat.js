/** Chat with a model. The conversation stays in this browser. */

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { ask, newAnswer } from "./answer.js";
import { Composer, Message } from "./message.js";
import { Parameters, requestOf, useParameters, useStored } from "./parameters.js";

const AT_THE_END_PX = 120;

/** Return the messages as a request has them. Answers that were stopped before they said anything are left out. */
function said(messages) {
  return messages
    .filter(({ role, content, calls }) => role !== "assistant" || content || calls.length)
    .map(({ role, content, calls, tool_call_id }) => ({
      role,
      content,
      ...(tool_call_id && { tool_call_id }),
      ...(calls?.length && {
        tool_calls: calls.map(({ id, name, input }) => ({ id, type: "function", function: { name, arguments: input } })),
      }),
    }));
}

/** Return the calls of the last answer that have no result yet. */
function unanswered(messages) {
  const at = messages.findLastIndex(({ role }) => role === "assistant");
  const results = messages.slice(at + 1).map(({ tool_call_id }) => tool_call_id);
  return at < 0 ? [] : messages[at].calls.filter(({ id }) => !results.includes(id));
}

export function Chat({ models, onFault }) {
  const [parameters, setParameters] = useParameters();
  const [messages, setMessages] = useStored("reprise.chat", []);
  const [answer, setAnswer] = useState(null);
  const [showsOrigins, setShowsOrigins] = useStored("reprise.origins", false);
  const [edited, setEdited] = useState("");
  const running = useRef(null);
  useEffect(() => {
    const page = document.documentElement;
    // Whoever has scrolled up to read is left there.
    if (page.scrollHeight - page.scrollTop - page.clientHeight < AT_THE_END_PX) page.scrollTop = page.scrollHeight;
  }, [messages, answer]);
  useEffect(() => () => running.current?.abort(), []);

  async function run(history) {
    setMessages(history);
    const stop = (running.current = new AbortController());
    let last = newAnswer();
    setAnswer(last);
    try {
      const body = { ...requestOf(models, parameters, said(history)), draft: { trace: true } };
      for await (last of ask(body, stop.signal)) setAnswer(last);
    } catch (fault) {
      if (fault.name !== "AbortError") {
        last = { ...last, fault: fault.message };
        if (fault.needsKey) onFault(fault);
      }
    }
    running.current = null;
    setAnswer(null);
    setMessages([...history, { ...last, notice: "" }]);
  }

  const [call] = unanswered(messages);
  function sent(text) {
    setEdited("");
    if (!call) return run([...messages, { role: "user", content: text }]);
    const next = [...messages, { role: "tool", content: text, tool_call_id: call.id }];
    return unanswered(next).length ? setMessages(next) : run(next);
  }

  const edit = (at) => () => {
    setEdited(messages[at].content);
    setMessages(messages.slice(0, at));
  };
  const button = (label, onClick) => html`<button class="quiet" disabled=${!!answer} onClick=${onClick}>${label}</button>`;
  return html`<section class="chat">
    <${Parameters} models=${models} value=${parameters} onChange=${setParameters} />
    <div class="messages" role="log" aria-label="Conversation" aria-busy=${!!answer}>
      ${!messages.length && !answer && html`<p class="empty">Ask something. Colours can show which words were drafted, and by what.</p>`}
      ${messages.map((message, at) => html`<${Message} message=${message} showsOrigins=${showsOrigins}>
        ${message.role === "user" && button("Edit", edit(at))}
        ${message.role === "assistant" && button("Retry", () => run(messages.slice(0, at)))}
      <//>`)}
      ${answer && html`<${Message} message=${answer} showsOrigins=${showsOrigins} isDone=${false} />`}
    </div>
    <${Composer} key=${edited} start=${edited} label=${call ? `Result of ${call.name}` : "Message"} isBusy=${!!answer}
      onSend=${sent} onStop=${() => running.current?.abort()} />
    <p class="row">
      <label><input type="checkbox" checked=${showsOrigins} onChange=${(event) => setShowsOrigins(event.target.checked)} /> Show where the text comes from</label>
      <button class="quiet" disabled=${!!answer || !messages.length} onClick=${() => setMessages([])}>New chat</button>
    </p>
  </section>`;
}
