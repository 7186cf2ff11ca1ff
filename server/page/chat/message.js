/** One message of a chat: what was said, thought and called, how it ended, and what can be done with it. */

import { Component, html, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { CopyButton } from "../reading/copy.js";
import { Markdown, Said } from "../reading/markdown.js";
import { Legend, Traced, runsOf } from "../reading/origins.js";
import { ENDS, canContinue, describe } from "../runs/answer.js";
import { told } from "../runs/waiting.js";
import { isImage } from "../chats/files.js";
import { Attached } from "./attached.js";
import { isSending } from "./composer.js";
import { edit, goOn, retry, turnTo } from "./actions.js";

const SPEAKERS = { user: "You", assistant: "Answer", tool: "Result", system: "System" };

/** wait: see runs/run.js. */
function Wait({ wait }) {
  return html`<p class="wait" role="status"><span class="pulse"></span><span>${told(wait)}</span>
    ${wait.share > 0 && html`<progress aria-label="How much is done" max="1" value=${wait.share}></progress>`}</p>`;
}

/** The answer itself. isDone: no more text comes. */
export function Answer({ message, showsOrigins, isDone, wait }) {
  const { content, reasoning, calls = [], trace = [] } = message;
  const [runs, thoughtRuns] = useMemo(
    () => (showsOrigins && trace.length ? [runsOf(trace, content), runsOf(trace, reasoning)] : [null, null]),
    [showsOrigins, trace, content, reasoning],
  );
  // All that the model wrote, where the text is not all of it: a call, or text in parts.
  const isTraced = showsOrigins && trace.length > 0 && (content ? !runs : calls.length > 0);
  return html`
    ${reasoning && html`<details class="thought" open=${!content && !isDone}><summary>Thinking</summary><${Markdown} text=${reasoning} isDone=${isDone} runs=${thoughtRuns} /></details>`}
    ${isTraced ? html`<${Traced} trace=${trace} />` : (content || !wait) && html`<${Markdown} text=${content} isDone=${isDone} runs=${runs} />`}
    ${wait && html`<${Wait} wait=${wait} />`}
    ${calls.map(({ name, input }) => html`<details class="call" open><summary>Calls <code>${name}</code></summary><pre tabindex="0">${input}</pre></details>`)}
    ${showsOrigins && trace.length > 0 && html`<${Legend} trace=${trace} />`}`;
}

function Ending({ message }) {
  const { end, fault, timings } = message;
  if (!ENDS[end]) return null;
  const words = end === "failed" ? (fault ?? ENDS.failed) : timings?.stopped === "loop" ? "Cut off: it repeated itself without an end." : ENDS[end];
  return end === "failed" ? html`<p class="fault" role="alert">${words}</p>` : html`<p class="ending">${words}</p>`;
}

/** action: what its button says. onDone: called with the text and the files that are left. */
function Editor({ start, startFiles, action, onDone, onCancel }) {
  const [text, setText] = useState(start);
  const [files, setFiles] = useState(startFiles);
  const area = useRef(null);
  useLayoutEffect(() => area.current.focus(), []);
  const isEmpty = !text.trim() && !files.length;
  const submit = (event) => {
    event.preventDefault();
    if (!isEmpty) onDone(text, files);
  };
  const onKey = (event) => (event.key === "Escape" ? (event.stopPropagation(), onCancel()) : isSending(event) && submit(event));
  return html`<form class="editor" onSubmit=${submit}>
    <${Attached} files=${files} onChange=${setFiles} />
    <textarea ref=${area} aria-label="Changed message" rows="3" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKey}></textarea>
    <div class="row end"><button type="button" onClick=${onCancel}>Cancel</button><button type="submit" disabled=${isEmpty}>${action}</button></div>
  </form>`;
}

const Files = ({ files }) => html`${files.map(({ name, text, url }) => (isImage({ url })
  ? html`<img class="picture" src=${url} alt=${name} />`
  : url ? html`<p><a href=${url} download=${name}>${name}</a></p>` : html`<details class="attached"><summary>${name}</summary><pre tabindex="0">${text}</pre></details>`))}`;

/** message: as kept, or an answer under way. wait: what it waits for, or null. version: {at, of} among those in its place.
 * isBusy: the chat has an answer under way. isLast: of what is shown. */
export class Message extends Component {
  state = { isEdited: false };

  shouldComponentUpdate(next, state) {
    const now = this.props;
    return state.isEdited !== this.state.isEdited || Object.keys(next).some((name) => name !== "version" && next[name] !== now[name])
      || next.version.at !== now.version.at || next.version.of !== now.version.of;
  }

  render() {
    const { chatId, message, wait, version, isBusy, isRunning, showsOrigins } = this.props;
    const { role, content, files = [] } = message;
    const isAnswer = role === "assistant";
    const setEdited = (isEdited) => this.setState({ isEdited });
    const action = (label, onClick) => html`<button class="quiet" disabled=${isBusy} onClick=${onClick}>${label}</button>`;
    if (this.state.isEdited) {
      return html`<article class=${`message ${role} edited`} aria-label=${SPEAKERS[role]}><${Editor} start=${content} startFiles=${files} action=${isAnswer ? "Save" : "Send"} onCancel=${() => setEdited(false)}
        onDone=${(text, left) => { setEdited(false); edit(chatId, message, text, left); }} /></article>`;
    }
    return html`<article class=${`message ${role}`} aria-label=${SPEAKERS[role]}>
      ${files.length > 0 && html`<${Files} files=${files} />`}
      ${isAnswer ? html`<${Answer} message=${message} wait=${wait} showsOrigins=${showsOrigins} isDone=${!isRunning} />` : content && html`<${Said} text=${content} />`}
      ${isAnswer && !isRunning && html`<${Ending} message=${message} />`}
      <footer>
        ${version.of > 1 && html`<span class="versions">
          <button class="quiet" aria-label="Earlier version" disabled=${isBusy || version.at === 0} onClick=${() => turnTo(chatId, message, -1)}>‹</button>
          ${version.at + 1}/${version.of}
          <button class="quiet" aria-label="Later version" disabled=${isBusy || version.at + 1 === version.of} onClick=${() => turnTo(chatId, message, 1)}>›</button></span>`}
        ${!isRunning && content && html`<${CopyButton} text=${content} />`}
        ${(role === "user" || (isAnswer && !isRunning && content)) && action("Edit", () => setEdited(true))}
        ${isAnswer && !isRunning && canContinue(message) && action("Continue", () => goOn(chatId, message))}
        ${isAnswer && !isRunning && action("Retry", () => retry(chatId, message))}
        ${isAnswer && message.timings && html`<span class="figures">${describe(message)}</span>`}
      </footer>
    </article>`;
  }
}
