/** The page's tabs, the key, and what went wrong. */

import { html, render, useCallback, useEffect, useState } from "./vendor/preact.js";
import { getJson, key } from "./shared/api.js";
import { Notice } from "./shared/notice.js";
import { useStored } from "./shared/stored.js";
import { adoptUnsaved } from "./chats/unsaved.js";
import { followAddress, readChats } from "./chats/store.js";
import { withLock } from "./runs/locks.js";
import { Chat } from "./chat/chat.js";
import { Now } from "./now/now.js";
import { Connect } from "./tabs/connect.js";
import { Models } from "./tabs/models.js";
import { Race } from "./tabs/race.js";

const TABS = {
  chat: ["Chat", Chat],
  race: ["Race", Race],
  now: ["Now", Now],
  models: ["Models", Models],
  connect: ["Connect", Connect],
};
/** Each with its sign; the last character keeps it from being drawn as a picture. */
const THEMES = { auto: "◐\ufe0e", light: "☀\ufe0e", dark: "☾\ufe0e" };
const RETRY_MS = 1000;
/** The tab that the address names, as #race or #/chat/ID; the chat if it names none. */
const tabOf = () => {
  const [, name] = /^#?\/?(\w*)/.exec(location.hash);
  return Object.hasOwn(TABS, name) ? name : "chat";
};

/** As the system has it, light or dark: a button that goes from one to the next. */
function Theme() {
  const [theme, setTheme] = useStored("reprise.theme", "auto");
  const names = Object.keys(THEMES);
  document.documentElement.dataset.theme = theme;
  const words = `Theme: ${theme}`;
  return html`<button class="quiet theme" title=${words} aria-label=${words} onClick=${() => setTheme(names[(names.indexOf(theme) + 1) % names.length])}>${THEMES[theme]}</button>`;
}

function KeyForm({ onKey }) {
  const [value, setValue] = useState("");
  const [isKept, setIsKept] = useState(false);
  return html`<form class="key" onSubmit=${(event) => { event.preventDefault(); key.set(value, isKept); onKey(); }}>
    <h2>This server asks for an API key</h2>
    <label>Key <input type="password" autocomplete="off" required autofocus value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
    <label><input type="checkbox" checked=${isKept} onChange=${(event) => setIsKept(event.target.checked)} /> Keep it in this browser</label>
    <button>Continue</button>
  </form>`;
}

/** The models, and of them those that answer in words, asked for until the server has them: it may be starting. */
function useModels(onFault, setNeedsKey) {
  const [models, setModels] = useState({ all: [], talking: [] });
  const [wait, setWait] = useState(null);
  const refresh = useCallback(async () => {
    try {
      const all = (await getJson("v1/models")).data;
      setModels({ all, talking: all.filter(({ purpose }) => (purpose ?? "generate") === "generate") });
      setNeedsKey(false);
      setWait(null);
    } catch (raised) {
      if (raised.status === 0 || raised.status === 503) setWait(raised.message);
      else onFault(raised);
    }
  }, []);
  useEffect(() => void refresh(), []);
  useEffect(() => {
    if (!wait) return;
    const timer = setInterval(refresh, RETRY_MS);
    return () => clearInterval(timer);
  }, [wait]);
  return { models, wait, refresh };
}

function Page() {
  const [tab, setTab] = useState(tabOf);
  const [fault, setFault] = useState(null);
  const [needsKey, setNeedsKey] = useState(false);
  const onFault = useCallback((raised) => {
    if (raised.status === 401) setNeedsKey(true);
    setFault(raised.code === "missing_api_key" ? null : raised.message);
  }, []);
  const { models, wait, refresh } = useModels(onFault, setNeedsKey);
  useEffect(() => {
    const follow = () => {
      setTab(tabOf());
      if (tabOf() === "chat") followAddress();
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const [label, View] = TABS[tab];
  document.title = `${label} · Reprise`;
  return html`
    <header><h1>Reprise</h1><nav aria-label="Tabs">${Object.entries(TABS).map(([name, [title]]) => html`
      <a href=${`#${name}`} aria-current=${name === tab ? "page" : undefined}>${title}</a>`)}</nav><${Theme} /></header>
    <main class=${`tab-${tab}`}>
      ${fault && html`<p class="fault banner" role="alert">${fault} <button class="quiet" onClick=${() => setFault(null)}>Dismiss</button></p>`}
      ${wait && html`<p class="soft banner" role="status">${wait} Trying again …</p>`}
      ${models.all.length > 0 && !models.talking.length && html`<p class="soft banner">This server has no model that chats: it makes embeddings or ranks documents.</p>`}
      ${needsKey ? html`<${KeyForm} onKey=${() => { setFault(null); refresh(); }} />` : html`<${View} models=${tab === "models" ? models.all : models.talking} refresh=${refresh} onFault=${onFault} />`}
    </main>
    <${Notice} />`;
}

render(html`<${Page} />`, document.body);
await readChats();
await adoptUnsaved(withLock);
if (tabOf() === "chat") followAddress();
