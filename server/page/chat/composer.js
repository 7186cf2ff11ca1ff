/** The field to write in, at the bottom of a chat. What is written in it stays until it is sent. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { keep, kept } from "../shared/stored.js";
import { Attached, LIMITS, readFiles } from "./attached.js";

const PREFIX = "reprise.draft.";
/** Where the keyboard covers half of the screen, it comes when the reader asks for it. */
const isTouched = () => matchMedia("(pointer: coarse)").matches;

/** Whether a key sends. Safari says of the Enter that ends a composition only that it has keyCode 229. A phone has no Shift+Enter. */
export const isSending = ({ key, shiftKey, isComposing, keyCode }) => key === "Enter" && !shiftKey && !isComposing && keyCode !== 229 && !isTouched();

/** Grow with the text, where the browser cannot do it by itself (field-sizing in style/chat.css). */
function fit(area) {
  if (CSS.supports("field-sizing", "content")) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

/** name: under which what is written is kept; start: what is there before. children: what stands beside the buttons. canAttach: whether files can be sent. sees: whether images can, too.
 * warn: returns what the server would refuse of a text and files, in words, or "". */
export function Composer({ name, label, start = "", action = "Send", onSend, isBusy, onStop, isBlocked = false, isKept = false, canAttach = false, sees = false, warn = () => "", children }) {
  const [text, setText] = useState(() => kept(PREFIX + name, start, sessionStorage));
  const [files, setFiles] = useState([]);
  const area = useRef(null);
  const picker = useRef(null);
  // Before anything is drawn: later it could take the focus from a field that the reader is in by then.
  useLayoutEffect(() => {
    if (!isTouched()) area.current.focus();
    fit(area.current);
  }, [name]);
  const warning = warn(text, files);
  const isEmpty = !text.trim() && !files.length;
  function write(next) {
    setText(next);
    keep(PREFIX + name, next || null, sessionStorage);
  }
  function submit(event) {
    event.preventDefault();
    if (isEmpty || isBusy || isBlocked) return;
    onSend(text, files);
    if (isKept) return;
    write("");
    setFiles([]);
    requestAnimationFrame(() => area.current && fit(area.current));
  }
  async function attach(given) {
    const added = await readFiles([...given], sees);
    setFiles((now) => [...now, ...added]);
    area.current?.focus();
  }
  async function pick({ target }) {
    await attach(target.files);
    target.value = "";
  }
  function take(event, given) {
    if (!canAttach || !given?.files.length) return;
    event.preventDefault();
    attach(given.files);
  }
  return html`<form class="composer" onSubmit=${submit} onPaste=${(event) => take(event, event.clipboardData)}
    onDragOver=${(event) => canAttach && event.preventDefault()} onDrop=${(event) => take(event, event.dataTransfer)}>
    <${Attached} files=${files} onChange=${setFiles} />
    <textarea ref=${area} aria-label=${label} placeholder=${label} rows="1" dir="auto" value=${text}
      onInput=${(event) => { write(event.target.value); fit(event.target); }} onKeyDown=${(event) => isSending(event) && submit(event)}></textarea>
    ${warning && html`<p class="soft" role="status">${warning}</p>`}
    <div class="composer-bar">
      ${canAttach && html`<button type="button" class="quiet" title=${sees ? `${LIMITS}, and images` : LIMITS} onClick=${() => picker.current.click()}>Attach</button>
        <input ref=${picker} type="file" multiple hidden aria-label=${sees ? "Attach images, PDFs or text files" : "Attach PDFs or text files"} onChange=${pick} />`}
      ${children}
      ${!isTouched() && html`<span class="hint">Enter sends, Shift+Enter begins a line</span>`}
      ${isBusy
        ? html`<button type="button" class="stop" title="Esc" onClick=${onStop}>Stop</button>`
        : html`<button type="submit" disabled=${isEmpty || isBlocked}>${action}</button>`}
    </div>
  </form>`;
}

/** Call a function when Esc is pressed anywhere. */
export function useEscape(called) {
  useEffect(() => {
    if (!called) return;
    const onKey = (event) => event.key === "Escape" && called();
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [called]);
}
