/** The same prompt twice, with drafts and without. One after the other: at once, each would slow the other. */

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { ask, newAnswer, whyUndrafted } from "./answer.js";
import { Composer, Message } from "./message.js";
import { Parameters, requestOf, useParameters } from "./parameters.js";

const LANES = {
  plain: ["Without drafts", { type: "none", trace: true }],
  drafts: ["With drafts", { trace: true }],
};

/** Return the sentences about two finished answers; if next to nothing was drafted, with the reason. */
export function verdict({ drafts, plain }) {
  const isEqual = ["content", "reasoning"].every((name) => drafts[name] === plain[name]) &&
    JSON.stringify(drafts.calls.map(({ name, input }) => [name, input])) ===
      JSON.stringify(plain.calls.map(({ name, input }) => [name, input]));
  if (!isEqual) return { isEqual, text: "The texts differ. This should never happen: please report it, with the prompt and the seed." };
  const ratio = plain.timings.predicted_ms / drafts.timings.predicted_ms;
  const why = whyUndrafted(drafts.timings);
  return { isEqual, text: `The texts are equal. With drafts the answer took ${(100 / ratio).toFixed(0)} % of the time: ${ratio.toFixed(2)} times as fast.${why && ` There were ${why}.`}` };
}

export function Race({ models, onFault }) {
  const [parameters, setParameters] = useParameters();
  const [lanes, setLanes] = useState({});
  const [seed, setSeed] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);

  async function run(prompt) {
    const stop = (running.current = new AbortController());
    const used = parameters.seed === "" ? Math.floor(Math.random() * 2 ** 31) : parameters.seed;
    setSeed(used);
    setIsBusy(true);
    setLanes({});
    try {
      const body = requestOf(models, { ...parameters, seed: used }, [{ role: "user", content: prompt }]);
      for (const [name, [, draft]] of Object.entries(LANES)) {
        setLanes((now) => ({ ...now, [name]: newAnswer() }));
        for await (const answer of ask({ ...body, draft }, stop.signal)) setLanes((now) => ({ ...now, [name]: answer }));
      }
    } catch (fault) {
      if (fault.name !== "AbortError") onFault(fault);
    }
    setIsBusy(false);
  }

  const isOver = Object.keys(LANES).every((name) => lanes[name]?.finish);
  const found = isOver && verdict(lanes);
  return html`<section class="race">
    <p>The same prompt and seed, first without drafts, then with them. The texts must be equal; only the time may differ.</p>
    <${Parameters} models=${models} value=${parameters} onChange=${setParameters} />
    <${Composer} label="Prompt" action="Race" onSend=${run} isBusy=${isBusy} onStop=${() => running.current?.abort()} isKept />
    <p class=${`verdict ${found ? (found.isEqual ? "equal" : "different") : ""}`} role="status">${found ? `${found.text} Seed ${seed}.` : ""}</p>
    <div class="lanes">
      ${Object.entries(LANES).map(([name, [label]]) => lanes[name] && html`<div class="lane"><h2>${label}</h2>
        <${Message} message=${lanes[name]} showsOrigins isDone=${!!lanes[name].finish} /></div>`)}
    </div>
  </section>`;
}
