/** Which chats have an answer under way, in this tab or in another one of this browser. */

import { Observed } from "../shared/observed.js";

const PREFIX = "reprise.chat.";

/** The ids of chats that a tab of this browser writes to. */
export const busy = new Observed(new Set());

const channel = new BroadcastChannel("reprise.busy");
channel.onmessage = () => look();

/** Browsers have locks over HTTPS and on this machine only; elsewhere a tab knows of its own answers alone. */
async function look() {
  const held = (await navigator.locks?.query())?.held ?? [];
  busy.set(new Set(held.filter(({ name }) => name.startsWith(PREFIX)).map(({ name }) => name.slice(PREFIX.length))));
}

/** Do something while no other tab may write to a chat. Return whether it was done. */
export async function withLock(chatId, done) {
  if (!navigator.locks) {
    await done();
    return true;
  }
  const isDone = await navigator.locks.request(PREFIX + chatId, { ifAvailable: true }, async (lock) => {
    if (!lock) return false;
    channel.postMessage(chatId);
    look();
    await done();
    return true;
  });
  channel.postMessage(chatId);
  look();
  return isDone;
}

// A tab that was closed in the middle of an answer says nothing.
addEventListener("focus", look);
look();
