/** The same prompt twice, one after the other or at once: with drafts and without. */

import { html, useRef, useState } from "./vendor/preact.js";
import { ask, newAnswer } from "./answer.js";
import { Composer, Message } from "./message.js";
import { Parameters, requestOf, useStored } from "./parameters.js";

const LANES = { drafts: undefined, plain: "none" };

export function Race({ models, onFault }) {
  const [parameters, setParameters] = useStored("reprise.parameters", { system: "", temperature: "", max_tokens: "", seed: "" });
  const [lanes, setLanes] = useState({});
  const [isBusy, setIsBusy] = useState(false);
  const running = useRef(null);

  async function run(prompt) {
    const stop = (running.current = new AbortController());
    const seed = parameters.seed === "" ? Math.floor(Math.random() * 2 ** 31) : parameters.seed;
    const body = requestOf({ ...parameters, seed }, [{ role: "user", content: prompt }]);
    setIsBusy(true);
    setLanes({ drafts: newAnswer(), plain: newAnswer() });
    const lane = async (name) => {
      const draft = { trace: true, ...(LANES[name] && { type: LANES[name] }) };
      for await (const answer of ask({ ...body, draft }, stop.signal)) setLanes((now) => ({ ...now, [name]: answer }));
    };
    try {
      await Promise.all([lane("drafts"), lane("plain")]);
    } catch (fault) {
      stop.abort();
      if (fault.name !== "AbortError") onFault(fault);
    }
    setIsBusy(false);
  }

  const { drafts, plain } = lanes;
  const isOver = !isBusy && drafts?.finish && plain?.finish;
  const isEqual = isOver && drafts.content === plain.content && drafts.reasoning === plain.reasoning;
  return html`<section class="race">
    <p>The same prompt and seed, with drafts and without, side by side. The texts must be equal; only the time may differ.</p>
    <${Parameters} models=${models} value=${parameters} onChange=${setParameters} />
    <${Composer} label="Prompt" onSend=${run} isBusy=${isBusy} onStop=${() => running.current?.abort()} />
    <p class=${`verdict ${isOver ? (isEqual ? "equal" : "different") : ""}`} role="status">
      ${isOver ? (isEqual ? "The texts are equal." : "The texts differ. Please report this: it should never happen.") : ""}
    </p>
    <div class="lanes">
      ${Object.keys(lanes).map((name) => html`<div class="lane"><h2>${name === "plain" ? "Without drafts" : "With drafts"}</h2>
        <${Message} message=${lanes[name]} showsOrigins isDone=${!isBusy} /></div>`)}
    </div>
  </section>`;
}
