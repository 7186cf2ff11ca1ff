/** How to point a coding agent, or a program, at this server: what `reprise connect` prints. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { getJson, key } from "../shared/api.js";
import { CopyButton } from "../reading/copy.js";
import { chosen } from "../runs/request.js";

const File = ({ path, text }) => html`<figure class="file">
  <figcaption><code>${path}</code><${CopyButton} text=${text} /></figcaption><pre tabindex="0" aria-label=${path}>${text}</pre>
</figure>`;

const curl = ({ url, model }) => `curl ${url}/chat/completions \\
  -H 'Content-Type: application/json' \\${key.get() ? "\n  -H 'Authorization: Bearer YOUR-API-KEY' \\" : ""}
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello!"}]}'`;

const python = ({ url, model }) => `from openai import OpenAI

client = OpenAI(base_url="${url}", api_key="${key.get() ? "YOUR-API-KEY" : "none"}")
answer = client.chat.completions.create(model="${model}", messages=[{"role": "user", "content": "Hello!"}])
print(answer.choices[0].message.content)`;

export function Connect({ models, onFault }) {
  const [model, setModel] = useState(null);
  const [found, setFound] = useState(null);
  const [agent, setAgent] = useState(null);
  const name = chosen(models, model);
  useEffect(() => {
    if (name) getJson(`v1/connect?model=${encodeURIComponent(name)}`).then(setFound, onFault);
  }, [name]);
  if (!found) return html`<p role="status">Looking …</p>`;
  const { files, notes } = found.agents.find((one) => one.name === agent) ?? {};
  const choice = (label, value, names, onChange) => html`<label>${label}
    <select onChange=${(event) => onChange(event.target.value)}>
      ${names.map((one) => html`<option value=${one} selected=${one === value}>${one}</option>`)}
    </select></label>`;
  return html`<section class="connect">
    <h2>Connect</h2>
    <div class="row">
      ${choice("Client", agent, ["curl and Python", ...found.agents.map((one) => one.name)], setAgent)}
      ${choice("Model", name, models.map(({ id }) => id), setModel)}
    </div>
    ${files
      ? html`<p>Add this to your settings, or run <code>reprise connect ${agent} --url ${found.url} --write</code> on your machine.</p>
          ${files.map((file) => html`<${File} ...${file} />`)}
          ${notes.length > 0 && html`<${File} path="Notes" text=${notes.join("\n")} />`}`
      : html`<p>Base URL: <code>${found.url}</code></p>
          <${File} path="curl" text=${curl(found)} /><${File} path="Python" text=${python(found)} />`}
  </section>`;
}
