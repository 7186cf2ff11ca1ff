/** Answers under way. They live outside the tabs of the page: whoever leaves one and comes back finds its answer going on. */

import { ApiError, LOST, UNREACHABLE, isAbort } from "../shared/api.js";
import { Observed } from "../shared/observed.js";
import { newId } from "../shared/words.js";
import { change } from "../chats/store.js";
import { path, withMessage } from "../chats/tree.js";
import { forgetUnsaved, keepUnsaved } from "../chats/unsaved.js";
import { ask, newAnswer } from "./answer.js";
import { withLock } from "./locks.js";
import { SENDING, fromProgress, watchWait } from "./waiting.js";

/** chat's id -> {answer, wait, stop}. wait: {words, share, sentAt}, null once there is text. */
export const runs = new Observed(new Map());
/** The ids of chats that this tab writes to. */
export const running = new Observed(new Set());
export const ELSEWHERE = "Another tab of this browser writes in this conversation. Wait for its answer.";

function hold(chatId, run) {
  if (running.value.has(chatId) !== !!run) {
    running.change((before) => new Set(run ? [...before, chatId] : [...before].filter((id) => id !== chatId)));
  }
  runs.put(chatId, run);
}

/** Stop an answer; it keeps what it has. */
export const stop = (chatId) => runs.value.get(chatId)?.stop();

// A reload keeps what has come.
addEventListener("pagehide", () => {
  for (const [chatId, { answer }] of runs.value) keepUnsaved(chatId, answer, true);
});

/** Return the end of an answer that a fault ended, with the words where ours do not say it all. */
function ended(fault) {
  if (isAbort(fault)) return { end: "stopped" };
  if (fault.code === LOST) return { end: "lost" };
  if (fault instanceof ApiError) return { end: "failed", fault: fault.message };
  console.error(fault);
  return { end: "failed", fault: "The page failed to read this answer. Reload it and try again." };
}

/** Ask for an answer in a chat and keep it there. bodyOf: makes the request of the chat and the messages before it.
 *
 * parent: the id of the message that is answered. continued: the answer to go on with, in its place.
 * Returns false if another tab writes in this chat.
 */
export function run(chatId, { parent, continued = null, bodyOf, onFault }) {
  return withLock(chatId, async () => {
    const controller = new AbortController();
    const watch = new AbortController();
    const start = continued ? { ...continued, end: null, fault: undefined, firstMs: null } : newAnswer({ id: newId(), parent });
    let last = start;
    const sentAt = performance.now();
    const told = (wait, answer = last) => {
      if (wait === null) watch.abort();
      hold(chatId, { answer, wait: wait && { ...wait, sentAt }, stop: () => controller.abort() });
    };
    told(SENDING);
    try {
      const chat = await change(chatId, (now) => now);
      const body = bodyOf(chat, path(chat, parent), continued);
      watchWait(body.model, (wait) => told(wait), watch.signal);
      for await (const { answer, progress } of ask(body, controller.signal, start)) {
        const hasGrown = answer.firstMs !== null;
        // What the stream says is truer than what /health does.
        if (progress || hasGrown) watch.abort();
        last = answer;
        if (progress && !hasGrown) told(fromProgress(progress));
        else if (hasGrown) told(null);
        keepUnsaved(chatId, last);
      }
      if (last.end === null) last = { ...last, end: "lost" };
    } catch (fault) {
      last = { ...last, ...ended(fault) };
      if (fault.status === 401 || fault.code === UNREACHABLE) onFault?.(fault);
    }
    watch.abort();
    await change(chatId, (now) => withMessage(now, last));
    forgetUnsaved(chatId);
    hold(chatId, null);
  });
}
