/** The page's tabs, the key, and what went wrong. */

import { html, render, useCallback, useEffect, useState } from "./vendor/preact.js";
import { getJson, key } from "./api.js";
import { Chat } from "./chat.js";
import { Connect } from "./connect.js";
import { Models } from "./models.js";
import { Now } from "./now.js";
import { Race } from "./race.js";

const TABS = {
  chat: ["Chat", Chat],
  race: ["Race", Race],
  now: ["Now", Now],
  models: ["Models", Models],
  connect: ["Connect", Connect],
};

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

function Page() {
  const [tab, setTab] = useState(location.hash.slice(1) in TABS ? location.hash.slice(1) : "chat");
  const [models, setModels] = useState([]);
  const [fault, setFault] = useState(null);
  const [needsKey, setNeedsKey] = useState(false);
  const onFault = useCallback((raised) => {
    if (raised.needsKey) setNeedsKey(true);
    setFault(raised.code === "missing_api_key" ? null : raised.message);
  }, []);
  const refresh = useCallback(async () => {
    try {
      setModels((await getJson("v1/models")).data);
      setNeedsKey(false);
    } catch (raised) {
      onFault(raised);
    }
  }, []);
  useEffect(() => {
    refresh();
    const follow = () => location.hash.slice(1) in TABS && setTab(location.hash.slice(1));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const [, View] = TABS[tab];
  return html`
    <header><h1>Reprise</h1><nav>${Object.entries(TABS).map(([name, [label]]) => html`
      <a href=${`#${name}`} aria-current=${name === tab ? "page" : undefined}>${label}</a>`)}</nav></header>
    <main>
      ${fault && html`<p class="fault" role="alert">${fault} <button class="quiet" onClick=${() => setFault(null)}>Dismiss</button></p>`}
      ${needsKey ? html`<${KeyForm} onKey=${() => { setFault(null); refresh(); }} />` : html`<${View} models=${models} refresh=${refresh} onFault=${onFault} />`}
    </main>`;
}

render(html`<${Page} />`, document.body);
