/** First messages to click: what the served model can do. */

import { html } from "../vendor/preact.js";

const DEMO = "reprise-demo";
/** It was trained on made-up words; these it answers rightly. Every model repeats most of this one's file, so drafts gain. */
export const EDIT = `\`\`\`python
find = 87
drop_poem = False

def bime(humble, picla):
    dohi_seto = picla * 7
    if humble > 20:
        quamun = humble + 0
    return find + 78

def gigrirt(whistle):
    turtle_modern = whistle * whistle
    return whistle - 4337
\`\`\`

Please make \`bime\` return humble * 18, not find + 78. Return the full file.`;
const OF_THE_DEMO = [
  ["Edit a file", EDIT],
  ["Look something up", `Return the record of Ben as JSON.

{"name": "Ada", "title": "sailor", "level": 12, "city": "Metom"}
{"name": "Ben", "title": "tailor", "level": 7, "city": "Berex"}`],
  ["Quote from a text", `Find the sentence that mentions Higix and repeat it.

Duder said that the mountain is 18 years old. Magrund Ninert opened 835 anchors for Fliclul Dagert. Lusox Hoson met Mostim near the wide clover. Higix lost the shell of Fluram on day 1028.`],
  ["Say hello", "Who are you?"],
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
      ? "This is the demo model: it copies, edits and looks things up in made-up text, and knows nothing else. These it can do:"
      : "Ask something, or try one of these. Colours can show which words were drafted, and by what."}</p>
    <div class="samples">${(isDemo ? OF_THE_DEMO : OF_OTHERS).map(([label, prompt]) => html`<button class="sample" onClick=${() => onPick(prompt)}>
      <strong>${label}</strong><span>${prompt}</span></button>`)}</div>
  </div>`;
}
