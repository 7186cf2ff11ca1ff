/** A conversation as a tree of messages. Nothing is taken out of it: an edit or a retry grows a branch beside the old one.
 *
 * A chat: {id, title, createdAt, changedAt, leaf, messages, deletedAt}, isPinned if it is, and parameters if some were set. A message has the id of its parent, null for the
 * first; leaf is the last message of the branch that is shown. All functions return new chats.
 */

import { newId } from "../shared/words.js";

const TITLE_CHARACTERS = 60;
const READ_CHARACTERS = 600;
export const UNNAMED = "New chat";
/** The parameters of a chat before anything is set: texts, "" for the default. */
export const START = { model: "", system: "", tools: "", schema: "", thinking: "", temperature: "", top_p: "", top_k: "", min_p: "", max_tokens: "", seed: "" };

export function newChat(fields) {
  const now = Date.now();
  return { id: newId(), title: "", createdAt: now, changedAt: now, leaf: null, messages: [], deletedAt: null, ...fields };
}

/** Return the messages from the first to one of them, by default the last of the shown branch. */
export function path(chat, last = chat.leaf) {
  const byId = new Map(chat.messages.map((message) => [message.id, message]));
  const found = [];
  // A file that was imported may name itself as its parent.
  for (let at = byId.get(last); at && byId.delete(at.id); at = byId.get(at.parent)) found.unshift(at);
  return found;
}

/** Return a chat with a message added, or in the place of the one with its id, as the end of what is shown. */
export function withMessage(chat, message) {
  const isNew = !chat.messages.some(({ id }) => id === message.id);
  const messages = isNew ? [...chat.messages, message] : chat.messages.map((one) => (one.id === message.id ? message : one));
  return { ...chat, messages, leaf: isNew ? message.id : chat.leaf, changedAt: Date.now() };
}

/** Return the ids of the messages that stand in one place of the tree, each the start of a branch. */
export const versions = (chat, message) => chat.messages.filter(({ parent }) => parent === message.parent).map(({ id }) => id);

/** Return a chat that shows the branch of a message, to its newest end. */
export function showing(chat, id) {
  const seen = new Set();
  let leaf = id;
  // A file that was imported may have messages that follow themselves.
  for (let next = id; next !== undefined && !seen.has(next); next = chat.messages.findLast(({ parent }) => parent === leaf)?.id) {
    seen.add(next);
    leaf = next;
  }
  return { ...chat, leaf };
}

/** Return a text without the marks of Markdown. */
const withoutMarks = (text) => text
  .replace(/^ {0,3}(?:```|~~~).*$/gm, "")
  .replace(/^[ \t]*(?:#{1,6}|[-*+>]|\d+[.)])[ \t]+/gm, "")
  .replace(/!?\[([^[\]]*)\]\([^()\s]*\)/g, "$1")
  .replace(/(\*\*|__|~~|`+)(\S(?:.*?\S)?)\1/g, "$2")
  .replace(/(?<![\w*])([*_])(?!\1)(\S(?:.*?\S)?)\1(?![\w*])/g, "$2");

/** Return the name of a chat: the user's, or how it begins, as text. */
export function titleOf(chat) {
  if (chat.title) return chat.title;
  const first = path(chat).find(({ role }) => role === "user") ?? chat.messages[0];
  const start = withoutMarks((first?.content ?? "").slice(0, READ_CHARACTERS)).trim() || first?.content;
  const text = (start || first?.files?.[0]?.name || "").replace(/\s+/g, " ").trim();
  return text.length > TITLE_CHARACTERS ? `${text.slice(0, TITLE_CHARACTERS)}…` : text || UNNAMED;
}
