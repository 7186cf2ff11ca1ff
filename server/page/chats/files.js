/** Conversations as files: JSON with every branch, to be read again, and Markdown of what is shown. */

import { newId } from "../shared/words.js";
import { START, newChat, path, titleOf } from "./tree.js";

const FORMAT = "reprise-chats";
const VERSION = 1;
const FILE_URL = /^data:(image\/(png|jpeg|webp|gif)|application\/pdf);base64,/;
const ROLES = ["user", "assistant", "tool", "system"];
const SPOKEN = { user: "You", assistant: "Model", tool: "Tool", system: "System" };

/** A file is not an export of this page; the message says how. */
export class FileError extends Error {}

export const isImage = ({ url }) => url?.startsWith("data:image/");

export const toJson = (chats) => JSON.stringify({ format: FORMAT, version: VERSION, chats }, null, 1);

export function toMarkdown(chat) {
  const parts = path(chat).map(({ role, content, files = [], calls = [] }) => [
    `## ${SPOKEN[role] ?? role}`,
    ...files.map(({ name, text, url }) => (url ? `${isImage({ url }) ? "!" : ""}[${name}](${url})` : fenced(name, text))),
    content,
    ...calls.map(({ name, input }) => fenced(`calls ${name}`, input)),
  ].filter(Boolean).join("\n\n"));
  return [`# ${titleOf(chat)}`, ...parts].join("\n\n") + "\n";
}

/** Return a text as a code block, with its name above it. */
export function fenced(name, text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** Return the chats of an exported file. Throws FileError. */
export function fromJson(text) {
  let held;
  try {
    held = JSON.parse(text);
  } catch {
    throw new FileError("This file is not JSON. Import what “Export” wrote.");
  }
  if (held?.format !== FORMAT || !Array.isArray(held.chats)) throw new FileError("This file is not an export of conversations.");
  if (held.version > VERSION) throw new FileError("A newer Reprise wrote this file. Update this one to read it.");
  return held.chats.map((chat) => sound(chat ?? {}));
}

/** Return a chat with only the fields that the page knows, each of its type. Throws FileError. */
function sound({ title, createdAt, changedAt, isPinned, leaf, messages, parameters }) {
  if (!Array.isArray(messages) || messages.some((one) => !ROLES.includes(one?.role) || typeof one.content !== "string" || typeof one.id !== "string")) {
    throw new FileError("A conversation in this file has messages that cannot be read.");
  }
  const number = (value) => (Number.isFinite(value) ? value : Date.now());
  const last = messages.some(({ id }) => id === leaf) ? leaf : (messages.at(-1)?.id ?? null);
  return newChat({ title: asText(title), createdAt: number(createdAt), changedAt: number(changedAt), isPinned: isPinned === true, leaf: last, messages: withOwnIds(messages.map(soundMessage)), ...(parameters && { parameters: strings(parameters, Object.keys(START)) }) });
}

/** Return messages each with an id of its own: of several with one id, the first keeps it. */
function withOwnIds(messages) {
  const taken = new Set();
  return messages.map((message) => {
    const id = taken.has(message.id) ? newId() : message.id;
    taken.add(id);
    return { ...message, id };
  });
}

const list = (value) => (Array.isArray(value) ? value : []);
/** What is no text nor a number becomes "": some objects throw if they are taken for one. */
const asText = (value) => (typeof value === "object" ? "" : String(value ?? ""));
const strings = (one, names) => Object.fromEntries(names.map((name) => [name, asText(one?.[name])]));
/** An image or a PDF is one that the file itself has: nothing else is loaded. */
const soundFile = (one) => (FILE_URL.test(asText(one?.url)) ? strings(one, ["name", "url"]) : strings(one, ["name", "text"]));

/** Return timings with what the page shows of them: numbers and two texts. */
function soundTimings(timings) {
  const numbers = Object.entries(timings).filter(([, value]) => Number.isFinite(value));
  return { ...Object.fromEntries(numbers), stopped: asText(timings.stopped), gate: strings(timings.gate, ["undrafted"]) };
}

function soundMessage({ id, parent, role, content, reasoning, calls, trace, files, timings, end, fault, tool_call_id, firstMs }) {
  return {
    id, role, content, end: typeof end === "string" ? end : null, parent: typeof parent === "string" ? parent : null,
    reasoning: asText(reasoning), calls: list(calls).map((one) => strings(one, ["id", "name", "input"])),
    trace: list(trace).map((one) => strings(one, ["text", "source"])), files: list(files).map(soundFile),
    timings: timings ? soundTimings(timings) : null, firstMs: Number.isFinite(firstMs) ? firstMs : null,
    ...(fault && { fault: asText(fault) }), ...(tool_call_id && { tool_call_id: asText(tool_call_id) }),
  };
}

/** Let the browser save a text as a file. */
export function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  URL.revokeObjectURL(url);
}
