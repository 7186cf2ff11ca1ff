/** What came of answers under way, kept at once, so that a reload or a crash loses nothing of them. */

import { keep, kept } from "../shared/stored.js";
import { change, chats, put } from "./store.js";
import { newChat, path, withMessage } from "./tree.js";

const PREFIX = "reprise.unsaved.";
const OLD_CHAT = "reprise.chat";
const OLD_PARAMETERS = "reprise.parameters";
const EVERY_MS = 500;
let lastAt = 0;

/** Keep an answer as it is now, twice a second at most. isUrgent: now. */
export function keepUnsaved(chatId, answer, isUrgent) {
  const now = performance.now();
  if (!isUrgent && now - lastAt < EVERY_MS) return;
  lastAt = now;
  keep(PREFIX + chatId, answer);
}

export const forgetUnsaved = (chatId) => keep(PREFIX + chatId, null);

/** Add the answers that a closed tab left behind to their chats. withLock: see runs/locks.js. */
export async function adoptUnsaved(withLock) {
  for (const name of Object.keys(localStorage).filter((one) => one.startsWith(PREFIX))) {
    const id = name.slice(PREFIX.length);
    // A tab that still writes the answer holds the lock.
    await withLock(id, async () => {
      const answer = kept(name, null);
      if (answer) await change(id, (chat) => withMessage(chat, { ...answer, end: "cut" }));
      forgetUnsaved(id);
    });
  }
}

/** Give every conversation the parameters that older pages kept for all of them. */
export function adoptOldParameters() {
  const parameters = kept(OLD_PARAMETERS, null);
  if (parameters) for (const [id, chat] of chats.value) if (!chat.parameters) put(id, { parameters });
  keep(OLD_PARAMETERS, null);
}

/** Take over the one conversation that older pages kept. */
export async function adoptOldChat() {
  const messages = kept(OLD_CHAT, []);
  if (messages.length) {
    let chat = newChat();
    for (const [at, { startedAt, firstAt, notice, finish, ...message }] of messages.entries()) {
      const end = message.role !== "assistant" ? null : message.fault ? "failed" : finish === "length" ? "length" : finish ? "done" : "stopped";
      chat = withMessage(chat, { ...message, id: `${chat.id}.${at}`, parent: path(chat).at(-1)?.id ?? null, end });
    }
    await change(chat.id, () => chat);
  }
  keep(OLD_CHAT, null);
}
