/** The model, the system prompt and how tokens are chosen, kept in this browser. */

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

/** Return the body of a request for the next answer. history: the messages so far. */
export function requestOf({ model, system, temperature, max_tokens, seed }, history) {
  const said = history.map(({ role, content }) => ({ role, content }));
  const body = { messages: system ? [{ role: "system", content: system }, ...said] : said };
  if (model) body.model = model;
  for (const [name, value] of Object.entries({ temperature, max_tokens, seed })) if (value !== "") body[name] = Number(value);
  return body;
}

export function Parameters({ models, value, onChange }) {
  const field = (name, label, attributes) => html`<label>${label}
    <input type="number" value=${value[name]} ...${attributes} onInput=${(event) => onChange({ ...value, [name]: event.target.value })} />
  </label>`;
  return html`<details class="parameters"><summary>${value.model ?? models[0]?.id ?? "Model"} and parameters</summary>
    <div class="fields">
      <label>Model <select value=${value.model ?? models[0]?.id} onChange=${(event) => onChange({ ...value, model: event.target.value })}>
        ${models.map(({ id }) => html`<option>${id}</option>`)}
      </select></label>
      ${field("temperature", "Temperature", { min: 0, max: 2, step: 0.1, placeholder: "default" })}
      ${field("max_tokens", "Maximum tokens", { min: 1, placeholder: "none" })}
      ${field("seed", "Seed", { min: 0, placeholder: "random" })}
      <label class="wide">System prompt
        <textarea rows="2" value=${value.system} onInput=${(event) => onChange({ ...value, system: event.target.value })}></textarea>
      </label>
    </div>
  </details>`;
}
