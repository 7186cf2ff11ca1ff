/** The model, the system prompt, the tools and how tokens are chosen, kept in this browser. */

import { html, useState } from "./vendor/preact.js";

/** As useState, kept in this browser under a name. */
export function useStored(name, start) {
  const [value, setValue] = useState(() => {
    try {
      return JSON.parse(localStorage.getItem(name)) ?? start;
    } catch {
      return start;
    }
  });
  return [value, (next) => {
    setValue(next);
    try {
      localStorage.setItem(name, JSON.stringify(next));
    } catch {
      // The browser's storage is full or switched off: it is kept until the page is closed.
    }
  }];
}

const START = { system: "", tools: "", temperature: "", max_tokens: "", seed: "" };

export const useParameters = () => useStored("reprise.parameters", START);

/** Return the model that was chosen, or the first one if it is not there any more. */
export const chosen = (models, name) => (models.some(({ id }) => id === name) ? name : models[0]?.id);

/** Return the body of a request for the next answer. messages: see said(). Throws if the tools are no JSON. */
export function requestOf(models, { model, system, tools, ...numbers }, messages) {
  const body = { model: chosen(models, model), messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  for (const name of ["temperature", "max_tokens", "seed"]) if (numbers[name] !== "") body[name] = Number(numbers[name]);
  if (tools.trim()) {
    try {
      body.tools = JSON.parse(tools);
    } catch (fault) {
      throw new Error(`The tools are not JSON: ${fault.message}`);
    }
  }
  return body;
}

export function Parameters({ models, value, onChange }) {
  const set = (name) => (event) => onChange({ ...value, [name]: event.target.value });
  const number = (name, label, attributes) => html`<label>${label}
    <input type="number" value=${value[name]} ...${attributes} onInput=${set(name)} />
  </label>`;
  const model = chosen(models, value.model);
  return html`<details class="parameters"><summary>${model ?? "Model"} and parameters</summary>
    <div class="fields">
      <label>Model <select value=${model} onChange=${set("model")}>
        ${models.map(({ id }) => html`<option value=${id} selected=${id === model}>${id}</option>`)}
      </select></label>
      ${number("temperature", "Temperature", { min: 0, max: 2, step: 0.1, placeholder: "default" })}
      ${number("max_tokens", "Maximum tokens", { min: 1, placeholder: "none" })}
      ${number("seed", "Seed", { min: 0, placeholder: "random" })}
      <label class="wide">System prompt <textarea rows="2" value=${value.system} onInput=${set("system")}></textarea></label>
      <label class="wide">Tools, as JSON in OpenAI's format
        <textarea rows="2" spellcheck="false" value=${value.tools} onInput=${set("tools")}></textarea>
      </label>
    </div>
  </details>`;
}
