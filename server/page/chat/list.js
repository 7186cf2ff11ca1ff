/** The list of conversations: search, rename, delete, export and import. */

import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { add, chats, pin, remove, rename, show, showNew, shown } from "../chats/store.js";
import { FileError, fromJson, save, toJson, toMarkdown } from "../chats/files.js";
import { titleOf } from "../chats/tree.js";
import { tell } from "../shared/notice.js";
import { useObserved } from "../shared/observed.js";
import { running, stop } from "../runs/run.js";

const day = (time) => new Date(time).toISOString().slice(0, 10);
const fileName = (chat) => titleOf(chat).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "chat";

const exportAll = (all) => save(`reprise-chats-${day(Date.now())}.json`, toJson(all), "application/json");

const MS_OF_A_DAY = 24 * 60 * 60_000;

/** Return the heading under which a chat stands in the list. */
export function headingOf({ isPinned, changedAt }) {
  if (isPinned) return "Pinned";
  const numDays = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(changedAt).setHours(0, 0, 0, 0)) / MS_OF_A_DAY);
  if (numDays < 7) return numDays <= 0 ? "Today" : numDays === 1 ? "Yesterday" : "Last 7 days";
  return new Date(changedAt).toLocaleDateString("en", { month: "long", year: "numeric" });
}

/** Whether a chat has all words of a search, in its title or in anything that was said. */
function matches(chat, words) {
  const text = `${titleOf(chat)}\n${chat.messages.map(({ content }) => content).join("\n")}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

/** onName: called with the new name, or with null to keep the old one. */
function Rename({ title, onName }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.select(), []);
  const submit = (event) => {
    event.preventDefault();
    onName(field.current.value);
  };
  return html`<form class="rename" onSubmit=${submit}>
    <input aria-label="Name of the chat" value=${title} ref=${field} onBlur=${() => onName(null)}
      onKeyDown=${(event) => event.key === "Escape" && (event.stopPropagation(), onName(null))} /></form>`;
}

function Entry({ chat, isShown, isRunning, onPick }) {
  const [isNamed, setNamed] = useState(false);
  const name = (title) => {
    if (title !== null) rename(chat.id, title);
    setNamed(false);
  };
  if (isNamed) return html`<li><${Rename} title=${titleOf(chat)} onName=${name} /></li>`;
  const pick = () => {
    show(chat.id);
    onPick();
  };
  const discard = () => {
    stop(chat.id);
    remove(chat.id);
  };
  const item = (label, onClick) => html`<button class="quiet" onClick=${(event) => { event.currentTarget.closest("details").open = false; onClick(); }}>${label}</button>`;
  return html`<li class=${isShown ? "shown" : ""}>
    <button class="pick" title=${new Date(chat.changedAt).toLocaleString()} aria-current=${isShown ? "true" : undefined} onClick=${pick}>${titleOf(chat)}${isRunning && html` <span class="pulse" title="An answer is being written"></span>`}</button>
    <details class="menu"><summary aria-label=${`More for ${titleOf(chat)}`}>⋯</summary><div>
      ${item(chat.isPinned ? "Unpin" : "Pin", () => pin(chat.id, !chat.isPinned))}
      ${item("Rename", () => setNamed(true))}
      ${item("Export as Markdown", () => save(`${fileName(chat)}.md`, toMarkdown(chat), "text/markdown"))}
      ${item("Export as JSON", () => save(`${fileName(chat)}.json`, toJson([chat]), "application/json"))}
      ${item("Delete", discard)}
    </div></details>
  </li>`;
}

/** onPick: called when a chat was chosen. */
export function ChatList({ onPick }) {
  const all = [...useObserved(chats).values()].filter(({ leaf }) => leaf).sort((a, b) => !!b.isPinned - !!a.isPinned || b.changedAt - a.changedAt);
  const shownId = useObserved(shown);
  const busy = useObserved(running);
  const [search, setSearch] = useState("");
  const picker = useRef(null);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? all.filter((chat) => matches(chat, words)) : all;
  async function imported(event) {
    const [file] = event.target.files;
    try {
      const added = fromJson(await file.text());
      if (await add(added)) tell(`${added.length} imported.`);
    } catch (fault) {
      if (!(fault instanceof FileError)) throw fault;
      tell(fault.message);
    }
    event.target.value = "";
  }
  const begin = () => {
    showNew();
    onPick();
  };
  return html`<nav class="chats" aria-label="Conversations">
    <button class="new" onClick=${begin}>New chat</button>
    <input type="search" aria-label="Search conversations" placeholder="Search" value=${search} onInput=${(event) => setSearch(event.target.value)} />
    ${!found.length && html`<p class="soft">${words.length ? "Nothing has these words." : "No conversations yet."}</p>`}
    <div class="groups">${[...Map.groupBy(found, headingOf)].map(([heading, group]) => html`<h2>${heading}</h2><ul aria-label=${heading}>${group.map((chat) => html`
      <${Entry} key=${chat.id} chat=${chat} isShown=${chat.id === shownId} isRunning=${busy.has(chat.id)} onPick=${onPick} />`)}</ul>`)}</div>
    <div class="row files-row">
      <button class="quiet" disabled=${!all.length} onClick=${() => exportAll(all)}>Export all</button>
      <button class="quiet" onClick=${() => picker.current.click()}>Import</button>
      <input ref=${picker} type="file" hidden accept=".json,application/json" aria-label="Import conversations" onChange=${imported} />
    </div>
  </nav>`;
}
