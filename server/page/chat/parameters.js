/** The model, the system prompt, the tools and how tokens are chosen: of each conversation its own. */

import { html, useState } from "../vendor/preact.js";
import { put } from "../chats/store.js";
import { START } from "../chats/tree.js";
import { keep, kept, useStored } from "../shared/stored.js";
import { NUMBERS, chosen, notJson } from "../runs/request.js";

const MODEL = "reprise.model";
const PRESETS = "reprise.presets";

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
  min_p: ["Min p", { min: 0, max: 1, step: 0.05, placeholder: "default" }],
  max_tokens: ["Maximum tokens", { min: 1, placeholder: "none" }],
  seed: ["Seed", { min: 0, placeholder: "random" }],
};

const SWITCHES = ["enable_thinking", "thinking"];
const EFFORT = ["reasoning_effort"];
/** What can be chosen, where the model's chat template has one of these variables. */
const THINKING = { on: SWITCHES, off: SWITCHES, low: EFFORT, medium: EFFORT, high: EFFORT };
const JSONS = { tools: "Tools, as JSON in OpenAI's format", schema: "JSON schema of the answer" };

/** Parameters under a name, without a model: to take over, save and delete. This browser keeps them for all chats. */
function Presets({ value, onChange }) {
  const [presets, setPresets] = useStored(PRESETS, {});
  const [name, setName] = useState("");
  const { model, ...others } = value;
  const shown = Object.keys(presets).find((one) => Object.keys(others).every((field) => (presets[one][field] ?? "") === others[field])) ?? "";
  // Another tab may have saved some.
  const { [shown]: _, ...without } = kept(PRESETS, {});
  const save = (event) => {
    event.preventDefault();
    setPresets({ ...kept(PRESETS, {}), [name.trim()]: others });
    setName("");
  };
  return html`<form class="wide presets" onSubmit=${save}>
    <label>Preset <select onChange=${({ target }) => onChange({ ...START, ...presets[target.value], model })}>
      <option value="" selected=${!shown}>none</option>${Object.keys(presets).map((one) => html`<option value=${one} selected=${one === shown}>${one}</option>`)}</select></label>
    <button type="button" class="quiet" disabled=${!shown} onClick=${() => setPresets(without)}>Delete preset</button>
    <label>Save all of this as <input placeholder="name" value=${name} onInput=${({ target }) => setName(target.value)} /></label>
    <button disabled=${!name.trim()}>Save</button>
  </form>`;
}

export function Parameters({ models, value, onChange }) {
  const set = (name) => (event) => onChange({ ...value, [name]: event.target.value });
  const model = chosen(models, value.model);
  const switches = models.find(({ id }) => id === model)?.thinking_switches ?? [];
  const thinking = Object.keys(THINKING).filter((one) => one === value.thinking || THINKING[one].some((name) => switches.includes(name)));
  const numChanged = [...NUMBERS, "system", "thinking", ...Object.keys(JSONS)].filter((name) => value[name]).length;
  const bad = notJson(value);
  return html`<div class="parameters">
    <label class="model"><span class="hidden">Model</span><select aria-label="Model" onChange=${set("model")}>
      ${models.map(({ id }) => html`<option value=${id} selected=${id === model}>${id}</option>`)}
    </select></label>
    <details><summary>Parameters${numChanged > 0 && ` (${numChanged} set)`}</summary>
      <div class="fields">
        <${Presets} value=${value} onChange=${onChange} />
        ${Object.entries(FIELDS).map(([name, [label, attributes]]) => html`<label>${label}
          <input type="number" value=${value[name]} ...${attributes} onInput=${set(name)} /></label>`)}
        ${thinking.length > 0 && html`<label>Thinking <select value=${value.thinking} onChange=${set("thinking")}>
          ${["", ...thinking].map((one) => html`<option value=${one} selected=${one === value.thinking}>${one || "default"}</option>`)}</select></label>`}
        <label class="wide">System prompt <textarea rows="2" value=${value.system} onInput=${set("system")}></textarea></label>
        ${Object.entries(JSONS).map(([name, label]) => html`<label class="wide">${label}
          <textarea rows="2" spellcheck="false" aria-invalid=${bad.includes(name)} value=${value[name]} onInput=${set(name)}></textarea>
          ${bad.includes(name) && html`<span class="fault">This is not JSON yet.</span>`}
        </label>`)}
      </div>
    </details>
  </div>`;
}
