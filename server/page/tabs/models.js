/** The models that there are: load, unload and pull them. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { events, getJson } from "../shared/api.js";
import { Observed, useObserved } from "../shared/observed.js";
import { bytes, percent } from "../shared/words.js";

const EVERY_MS = 700;
const DEMO = "reprise-demo";
const PURPOSES = { embed: "for embeddings", rerank: "for ranking" };

function purpose({ purpose, embedding }) {
  const prompts = Object.keys(embedding?.prompts ?? {});
  const made = purpose === "embed" && embedding ? `: ${embedding.dimensions} dimensions, pooling ${embedding.pooling}${prompts.length ? `, prompts ${prompts.join(", ")}` : ""}` : "";
  return PURPOSES[purpose] + made;
}

/** The download under way: it goes on while another tab of the page is open. */
const pulling = new Observed(null);

/** refresh: asks for the list again. A server of one model has no states; its model is loaded. */
export function Models({ models, refresh, onFault }) {
  const [busy, setBusy] = useState({});
  const [name, setName] = useState("");
  const progress = useObserved(pulling);
  const many = models.some(({ state }) => state !== undefined);
  const isMoving = models.some(({ state }) => state === "loading") || Object.keys(busy).length > 0;
  useEffect(() => void refresh(), []);
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
    pulling.set({ status: "asking" });
    try {
      for await (const step of events("v1/models/pull", { body: { model: name } })) if (step.status) pulling.set(step);
      setName("");
    } catch (fault) {
      onFault(fault);
    }
    pulling.set(null);
    await refresh();
  }

  const share = (label, done, all) => html`<span role="status">${label}${all && done ? `, ${percent(done, all)}` : ""} <progress aria-label=${label} max=${all || 1} value=${done ?? 0}></progress></span>`;
  const state = (model) => (model.state === "loading" ? share(model.phase ?? "loading", model.progress, 1) : busy[model.id] ? `${busy[model.id]}ing …` : (model.state ?? "loaded"));
  const head = (name, isNumber) => html`<th scope="col" class=${isNumber ? "number" : ""}>${name}</th>`;
  return html`<section class="models">
    <h2>Models</h2>
    <div class="scrolled" tabindex="0" role="group" aria-label="Models"><table class="cards"><thead><tr>
      ${head("model")}${head("context", true)}${head("size", true)}${head("state")}${head("requests", true)}<td></td></tr></thead><tbody>
      ${models.map((model) => html`<tr>
        <td data-name="model">${model.id}${PURPOSES[model.purpose] && html` <span class="soft">${purpose(model)}</span>`}${model.fault && html`<p class="fault">${model.fault}</p>`}</td>
        <td data-name="context" class="number">${model.context_length?.toLocaleString("en") ?? ""}</td><td data-name="size" class="number">${bytes(model.size_bytes ?? model.meta?.size)}</td>
        <td data-name="state">${state(model)}</td><td data-name="requests" class="number">${model.running ?? ""}</td>
        <td class="act">${many && html`<button disabled=${model.id in busy} aria-label=${`${model.state === "unloaded" ? "Load" : "Unload"} ${model.id}`}
          onClick=${() => act(model.id, model.state === "unloaded" ? "load" : "unload")}>${model.state === "unloaded" ? "Load" : "Unload"}</button>`}</td>
      </tr>`)}
    </tbody></table></div>
    ${models.some(({ id }) => id === DEMO) && html`<p>${DEMO} copies and edits made-up text, and knows nothing else.
      A real small model, 93 MB and no hub needed, is SmolLM2-135M-Instruct: <code>reprise serve smollm2</code></p>`}
    ${many
      ? html`<form class="row" onSubmit=${pull}>
          <label>Download from the hub <input required placeholder="owner/name" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
          <button disabled=${!!progress}>Pull</button>
          ${progress && share(progress.status, progress.completed_bytes, progress.total_bytes)}
        </form>`
      : html`<p>This server has one model. Start it with <code>--models-dir</code> or <code>--allow-load</code> to load others here.</p>`}
  </section>`;
}
