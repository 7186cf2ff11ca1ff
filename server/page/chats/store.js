/** All conversations of this browser, in memory as they are in its database, and which one is shown. */

import { newId } from "../shared/words.js";
import { kept, keep } from "../shared/stored.js";
import { Observed } from "../shared/observed.js";
import { tell, withdraw } from "../shared/notice.js";
import { changeRecord, read, readAll } from "./database.js";
import { newChat, titleOf } from "./tree.js";

const SHOWN = "reprise.shown";
/** Another tab may still offer to undo a deletion that is younger. */
const GONE_AFTER_MS = 10 * 60_000;

/** id -> chat, without the deleted ones. */
export const chats = new Observed(new Map());
/** id -> chat, deleted ones too: those whose last change the database did not take. */
const unkept = new Map();
/** The ids of deleted chats that the database still has. */
const deleted = new Set();
const addressOf = (id) => `#/chat/${id}`;
/** The id of the chat that the address names, undefined if it names none. */
const addressed = () => /^#\/chat\/(\w+)$/.exec(location.hash)?.[1];
/** The id of the chat that this tab shows. It is in `chats` once it has a message. */
export const shown = new Observed(addressed() ?? kept(SHOWN, null, sessionStorage) ?? newId());
/** The ids of chats that this tab has shown, also those in which nothing was said. */
const seen = new Set([kept(SHOWN, null, sessionStorage)]);
/** Whether the conversations are there: until then nothing is known of them. */
export const isRead = new Observed(false);

const channel = new BroadcastChannel("reprise.chats");
let isKept = true;

function hold(id, chat) {
  if (chat?.deletedAt) deleted.add(id);
  else deleted.delete(id);
  chats.put(id, chat?.deletedAt ? null : chat);
}

channel.onmessage = async ({ data }) => {
  const chat = await read(data);
  if (!unkept.has(data)) hold(data, chat);
};

function setShown(id) {
  if (id !== shown.value) withdraw();
  seen.add(id);
  shown.set(id);
  keep(SHOWN, id, sessionStorage);
}

/** Show a chat, under an address of its own: the browser's arrows lead back to the one before. */
export function show(id) {
  setShown(id);
  location.hash = addressOf(id);
}

/** Show the chat that the address names. If it names none, or a deleted one, it gets that of the chat that is shown. */
export function followAddress() {
  const id = addressed();
  if (id && !deleted.has(id)) {
    if (isRead.value && !chats.value.has(id) && !seen.has(id)) tell("This conversation is not in this browser.");
    setShown(id);
  } else {
    setShown(deleted.has(shown.value) ? newId() : shown.value);
    history.replaceState(null, "", addressOf(shown.value));
  }
}

/** Show an empty chat, which is kept once it has a message. The one before stays in the list. */
export const showNew = () => show(newId());

/** Return a chat as it is now. record: what the database has of it. Another tab forgets chats that have only parameters. */
const latest = (id, record) => unkept.get(id) ?? record ?? chats.value.get(id) ?? newChat({ id });

/** Change a chat in the database, or have it here alone. made: see change(). Return it. */
async function write(id, made) {
  let chat = null;
  const next = (record) => (chat = made(latest(id, record)));
  if (isKept && (await changeRecord(id, next).then(() => true, () => false))) {
    unkept.delete(id);
    channel.postMessage(id);
    return chat;
  }
  chat ??= next();
  unkept.set(id, chat);
  // A record that says so may not fit either; without one there is room.
  if (chat.deletedAt) await changeRecord(id, () => null).then(() => channel.postMessage(id), () => {});
  else if (isKept) tell("This browser has no room for the conversation: it lasts until the tab is closed. Export it to keep it.");
  return chat;
}

/** Change a chat, or begin it. made: gets it as it is now. Return it. */
export async function change(id, made) {
  const chat = await write(id, made);
  hold(id, chat);
  return chat;
}

/** Change fields of a chat at once, as a reader types; what the database has follows. */
export function put(id, fields) {
  const made = (chat) => ({ ...chat, ...fields });
  hold(id, made(latest(id)));
  write(id, made);
}

export const rename = (id, title) => change(id, (chat) => ({ ...chat, title: title.trim() }));

export const pin = (id, isPinned) => change(id, (chat) => ({ ...chat, isPinned }));

export async function remove(id) {
  const removed = await change(id, (chat) => ({ ...chat, deletedAt: Date.now() }));
  if (shown.value === id) showNew();
  tell(`“${titleOf(removed)}” was deleted.`, async () => {
    await change(id, (chat) => ({ ...(chat.messages.length ? chat : removed), deletedAt: null }));
    show(id);
  });
}

/** Add chats under new ids and show the first. Return whether all are kept. */
export async function add(added) {
  const ids = [];
  for (const chat of added) {
    const id = newId();
    await change(id, () => ({ ...chat, id, deletedAt: null }));
    ids.push(id);
  }
  if (ids.length) show(ids[0]);
  return !ids.some((id) => unkept.has(id));
}

/** Read the database; forget what was deleted long ago. */
export async function readChats() {
  try {
    const found = await readAll();
    // One without messages has nothing but parameters, set before anything was said.
    const isGone = ({ id, deletedAt, messages, changedAt }) =>
      (deletedAt ?? (messages.length || id === shown.value ? Infinity : changedAt)) < Date.now() - GONE_AFTER_MS;
    for (const { id } of found.filter(isGone)) await changeRecord(id, (now) => (now && isGone(now) ? null : now));
    for (const { id, deletedAt } of found) if (deletedAt) deleted.add(id);
    chats.set(new Map(found.filter(({ deletedAt }) => !deletedAt).map((chat) => [chat.id, chat])));
    // A tab of its own begins where the last one was.
    if (!addressed() && !kept(SHOWN, null, sessionStorage)) setShown(newest()?.id ?? shown.value);
  } catch {
    isKept = false;
    tell("This browser keeps no conversations here: they last until the tab is closed.");
  }
  isRead.set(true);
}

const newest = () => [...chats.value.values()].filter(({ leaf }) => leaf).sort((a, b) => b.changedAt - a.changedAt)[0];
