/** What came of answers under way, kept at once, so that a reload or a crash loses nothing of them. */

import { keep, kept } from "../shared/stored.js";
import { change } from "./store.js";
import { withMessage } from "./tree.js";

const PREFIX = "reprise.unsaved.";
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
      // What it answers may be a message that there was no room for.
      const isThere = (chat) => chat.messages.some((one) => one.id === answer.parent);
      if (answer) await change(id, (chat) => (isThere(chat) ? withMessage(chat, { ...answer, end: "cut" }) : chat));
      forgetUnsaved(id);
    });
  }
}
