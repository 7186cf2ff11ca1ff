/** The models that there are: load, unload and pull them. */

import { html, useState } from "./vendor/preact.js";
import { events, getJson } from "./api.js";

const MIB = 2 ** 20;
const size = (bytes) => (bytes ? (bytes >= 1024 * MIB ? `${(bytes / MIB / 1024).toFixed(1)} GiB` : `${(bytes / MIB).toFixed(0)} MiB`) : "");

/** refresh: asks for the list again. A server of one model has no states; its model is loaded. */
export function Models({ models, refresh, onFault }) {
  const [busy, setBusy] = useState({});
  const [name, setName] = useState("");
  const [progress, setProgress] = useState(null);
  const many = models.some((model) => model.state !== undefined);

  async function act(id, what) {
    setBusy((now) => ({ ...now, [id]: what }));
    try {
      await getJson(`v1/models/${what}`, { body: { model: id } });
    } catch (fault) {
      onFault(fault);
    }
    setBusy((now) => ({ ...now, [id]: undefined }));
    refresh();
  }

  async function pull(event) {
    event.preventDefault();
    try {
      for await (const step of events("v1/models/pull", { body: { model: name } })) if (!("comment" in step)) setProgress(step);
      setName("");
    } catch (fault) {
      onFault(fault);
    }
    setProgress(null);
    refresh();
  }

  return html`<section class="models">
    <table><thead><tr><th>model</th><th>context</th><th>size</th><th>state</th><th></th></tr></thead><tbody>
      ${models.map((model) => html`<tr>
        <td>${model.id}${model.fault && html`<p class="fault">${model.fault}</p>`}</td>
        <td>${model.context_length ?? ""}</td><td>${size(model.size_bytes ?? model.meta?.size)}</td>
        <td>${busy[model.id] ? `${busy[model.id]}ing …` : (model.state ?? "loaded")}</td>
        <td>${many && !model.fault && html`<button disabled=${!!busy[model.id]} onClick=${() => act(model.id, model.state === "loaded" ? "unload" : "load")}>
          ${model.state === "loaded" ? "Unload" : "Load"}</button>`}</td>
      </tr>`)}
    </tbody></table>
    ${many
      ? html`<form class="row" onSubmit=${pull}>
          <label>Download from the hub <input required placeholder="owner/name" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
          <button disabled=${!!progress}>Pull</button>
          ${progress && html`<span role="status">${progress.status} <progress max=${progress.total_bytes ?? 1} value=${progress.completed_bytes ?? 0}></progress></span>`}
        </form>`
      : html`<p>This server has one model. Start it with <code>--models-dir</code> to load others here.</p>`}
  </section>`;
}
