/** The models that there are: load, unload and pull them. */

import { html, useEffect, useState } from "./vendor/preact.js";
import { events, getJson } from "./api.js";

const EVERY_MS = 700;
const MIB = 2 ** 20;
const GIB = 2 ** 30;
const DEMO = "reprise-demo";

function size(bytes) {
  if (!bytes) return "";
  return bytes >= GIB ? `${(bytes / GIB).toFixed(1)} GiB` : `${(bytes / MIB).toFixed(0)} MiB`;
}

/** refresh: asks for the list again. A server of one model has no states; its model is loaded. */
export function Models({ models, refresh, onFault }) {
  const [busy, setBusy] = useState({});
  const [name, setName] = useState("");
  const [progress, setProgress] = useState(null);
  const many = models.some(({ state }) => state !== undefined);
  const isMoving = models.some(({ state }) => state === "loading") || Object.keys(busy).length > 0;
  useEffect(() => {
    if (!isMoving) return;
    const timer = setInterval(refresh, EVERY_MS);
    return () => clearInterval(timer);
  }, [isMoving]);

  async function act(id, what) {
    setBusy((now) => ({ ...now, [id]: what }));
    try {
      await getJson(`v1/models/${what}`, { body: { model: id } });
    } catch (fault) {
      onFault(fault);
    }
    setBusy(({ [id]: _, ...others }) => others);
    await refresh();
  }

  async function pull(event) {
    event.preventDefault();
    setProgress({ status: "asking" });
    try {
      for await (const step of events("v1/models/pull", { body: { model: name } })) if (step.status) setProgress(step);
      setName("");
    } catch (fault) {
      onFault(fault);
    }
    setProgress(null);
    await refresh();
  }

  const share = (label, done, all) => html`<span role="status">${label} <progress aria-label=${label} max=${all || 1} value=${done ?? 0}></progress></span>`;
  const state = (model) => (model.state === "loading" ? share("loading", model.progress, 1) : busy[model.id] ? `${busy[model.id]}ing …` : (model.state ?? "loaded"));
  return html`<section class="models">
    <div class="scrolled"><table><thead><tr>${["model", "context", "size", "state", "requests", ""].map((one) => html`<th scope="col">${one}</th>`)}</tr></thead><tbody>
      ${models.map((model) => html`<tr>
        <td>${model.id}${model.fault && html`<p class="fault">${model.fault}</p>`}</td>
        <td>${model.context_length ?? ""}</td><td>${size(model.size_bytes ?? model.meta?.size)}</td>
        <td>${state(model)}</td><td>${model.running ?? ""}</td>
        <td>${many && html`<button disabled=${model.id in busy} aria-label=${`${model.state === "unloaded" ? "Load" : "Unload"} ${model.id}`}
          onClick=${() => act(model.id, model.state === "unloaded" ? "load" : "unload")}>${model.state === "unloaded" ? "Load" : "Unload"}</button>`}</td>
      </tr>`)}
    </tbody></table></div>
    ${models.some(({ id }) => id === DEMO) && html`<p>${DEMO} copies and edits made-up text, and knows nothing else.
      A real small model, 93 MB and no hub needed, is SmolLM2-135M-Instruct: <code>reprise serve --model smollm2</code></p>`}
    ${many
      ? html`<form class="row" onSubmit=${pull}>
          <label>Download from the hub <input required placeholder="owner/name" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
          <button disabled=${!!progress}>Pull</button>
          ${progress && share(progress.status, progress.completed_bytes, progress.total_bytes)}
        </form>`
      : html`<p>This server has one model. Start it with <code>--models-dir</code> or <code>--allow-load</code> to load others here.</p>`}
  </section>`;
}
