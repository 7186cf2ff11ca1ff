/** The model, the system prompt, the tools and how tokens are chosen: of each conversation its own. */

import { html } from "../vendor/preact.js";
import { put } from "../chats/store.js";
import { START } from "../chats/tree.js";
import { keep, kept, useStored } from "../shared/stored.js";
import { NUMBERS, chosen } from "../runs/request.js";

const MODEL = "reprise.model";

/** As useState, of parameters that this browser keeps under a name. */
export const useParameters = (name) => {
  const [value, setValue] = useStored(name, START);
  return [{ ...START, ...value }, setValue];
};

/** Return the parameters of a chat. One that has none has the model that was chosen last. */
export const parametersOf = (chat) => ({ ...START, model: kept(MODEL, ""), ...chat?.parameters });

/** Keep the parameters of a chat, and the model for new ones. */
export function setParameters(chatId, parameters) {
  keep(MODEL, parameters.model || null);
  put(chatId, { parameters });
}

const FIELDS = {
  temperature: ["Temperature", { min: 0, max: 2, step: 0.1, placeholder: "default" }],
  top_p: ["Top p", { min: 0, max: 1, step: 0.05, placeholder: "default" }],
  top_k: ["Top k", { min: 0, step: 1, placeholder: "default" }],
  max_tokens: ["Maximum tokens", { min: 1, placeholder: "none" }],
  seed: ["Seed", { min: 0, placeholder: "random" }],
};

const isJson = (text) => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

export function Parameters({ models, value, onChange }) {
  const set = (name) => (event) => onChange({ ...value, [name]: event.target.value });
  const model = chosen(models, value.model);
  const numChanged = [...NUMBERS, "system", "tools"].filter((name) => value[name]).length;
  const isBad = value.tools.trim() !== "" && !isJson(value.tools);
  return html`<div class="parameters">
    <label class="model"><span class="hidden">Model</span><select aria-label="Model" onChange=${set("model")}>
      ${models.map(({ id }) => html`<option value=${id} selected=${id === model}>${id}</option>`)}
    </select></label>
    <details><summary>Parameters${numChanged > 0 && ` (${numChanged} set)`}</summary>
      <div class="fields">
        ${Object.entries(FIELDS).map(([name, [label, attributes]]) => html`<label>${label}
          <input type="number" value=${value[name]} ...${attributes} onInput=${set(name)} /></label>`)}
        <label class="wide">System prompt <textarea rows="2" value=${value.system} onInput=${set("system")}></textarea></label>
        <label class="wide">Tools, as JSON in OpenAI's format
          <textarea rows="2" spellcheck="false" aria-invalid=${isBad} value=${value.tools} onInput=${set("tools")}></textarea>
          ${isBad && html`<span class="fault">This is not JSON yet.</span>`}
        </label>
      </div>
    </details>
  </div>`;
}
