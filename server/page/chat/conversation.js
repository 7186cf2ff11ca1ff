/** The messages of the chat that is shown, and its answer under way. */

import { html, useEffect, useLayoutEffect, useRef } from "../vendor/preact.js";
import { path, versions } from "../chats/tree.js";
import { Message } from "./message.js";
import { answerLast } from "./actions.js";

const AT_THE_END_PX = 80;

/** run: see runs/run.js, or undefined. isBusy: this or another tab writes. */
export function Conversation({ chat, chatId, run, isBusy, showsOrigins, children }) {
  const scroller = useRef(null);
  const isAtEnd = useRef(true);
  const lastTop = useRef(0);
  const messages = chat ? path(chat).filter(({ id }) => id !== run?.answer.id) : [];
  const runAt = messages.findLastIndex(({ id }) => id === run?.answer.parent);
  const before = run ? messages.slice(0, runAt + 1) : messages;
  // One list, so that an answer stays the same element when it is over.
  const all = run ? [...before, run.answer] : before;
  const onScroll = ({ target }) => {
    // It may come when the conversation is left already.
    const { scrollHeight, scrollTop, clientHeight } = target;
    // Whoever has scrolled up to read is left there. What grows below does not scroll up.
    if (scrollHeight - scrollTop - clientHeight < AT_THE_END_PX) isAtEnd.current = true;
    else if (scrollTop < lastTop.current) isAtEnd.current = false;
    lastTop.current = scrollTop;
  };
  const toEnd = () => {
    if (!isAtEnd.current) return;
    scroller.current.scrollTop = scroller.current.scrollHeight;
    lastTop.current = scroller.current.scrollTop;
  };
  const runId = run?.answer.id;
  useLayoutEffect(() => {
    isAtEnd.current = true;
    toEnd();
  }, [chatId, !chat]);
  useLayoutEffect(() => {
    // What is asked for is shown; that an answer is over moves nobody.
    if (!runId) return;
    isAtEnd.current = true;
    toEnd();
  }, [runId]);
  useEffect(() => {
    // Formulas and pictures grow after they are drawn.
    const growth = new ResizeObserver(toEnd);
    growth.observe(scroller.current.firstElementChild);
    growth.observe(scroller.current);
    return () => growth.disconnect();
  }, []);
  const version = (message) => {
    const ids = chat ? versions(chat, message) : [];
    const isNew = !ids.includes(message.id);
    return { at: isNew ? ids.length : ids.indexOf(message.id), of: ids.length + (isNew ? 1 : 0) };
  };
  const last = before.at(-1);
  const isUnanswered = !run && !isBusy && last?.role === "user";
  return html`<div class="scroller" ref=${scroller} onScroll=${onScroll} tabindex="0" role="log" aria-label="Conversation" aria-busy=${!!run} aria-live="off">
    <div class="messages">
      ${!before.length && !run && children}
      ${all.map((message) => html`<${Message} key=${message.id} message=${message} wait=${message === run?.answer ? run.wait : null}
        version=${version(message)} isRunning=${message === run?.answer} isBusy=${isBusy} chatId=${chatId} showsOrigins=${showsOrigins} />`)}
      ${isUnanswered && html`<p class="ending">This message has no answer. <button class="quiet" onClick=${() => answerLast(chatId, last)}>Ask for one</button></p>`}
    </div>
  </div>`;
}
