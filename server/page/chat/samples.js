/** First messages to click: what the served model can do. */

import { html } from "../vendor/preact.js";

const DEMO = "reprise-demo";
const OF_THE_DEMO = [
  ["Change a value in a file", "Change a from 41 to 8. Answer with the whole file.\n\n```python\na = 41\nflute = 83\ndark = 29\n```"],
];
const OF_OTHERS = [
  ["Explain", "Explain in three short paragraphs how a bicycle stays upright."],
  ["Write code", "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples."],
  ["Make a table", "Make a table of the planets: name, diameter in km, number of moons."],
  ["Rewrite", "Rewrite this politely, in two sentences: Your invoice is wrong again. Fix it today."],
];

/** model: the chosen one. onPick: called with a prompt. */
export function Samples({ model, onPick }) {
  const isDemo = model === DEMO;
  return html`<div class="empty">
    <h2>What shall it be?</h2>
    <p class="soft">${isDemo
      ? "This is the demo model: it copies and edits made-up text, very fast, and knows nothing else. These it can do:"
      : "Ask something, or try one of these. Colours can show which words were drafted, and by what."}</p>
    <div class="samples">${(isDemo ? OF_THE_DEMO : OF_OTHERS).map(([label, prompt]) => html`<button class="sample" onClick=${() => onPick(prompt)}>
      <strong>${label}</strong><span>${prompt}</span></button>`)}</div>
  </div>`;
}
