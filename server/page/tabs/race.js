/** The same prompt twice, with drafts and without. One after the other: at once, each would slow the other. */

import { html } from "../vendor/preact.js";
import { isAbort } from "../shared/api.js";
import { Observed, useObserved } from "../shared/observed.js";
import { percent, plural } from "../shared/words.js";
import { ask, describe, newAnswer, whyUndrafted } from "../runs/answer.js";
import { faultOf, requestOf } from "../runs/request.js";
import { SENDING, fromProgress, watchWait } from "../runs/waiting.js";
import { Answer } from "../chat/message.js";
import { Composer, useEscape } from "../chat/composer.js";
import { Parameters, useParameters } from "../chat/parameters.js";
import { EDIT } from "../chat/samples.js";

const LANES = {
  plain: ["Without drafts", { type: "none", trace: true }],
  drafts: ["With drafts", { trace: true }],
};
/** Less is noise of the machine. */
const NOTABLE = 0.02;

/** The race under way or the last one; it goes on while another tab of the page is open. */
const race = new Observed({ lanes: {}, seed: null, stop: null });
const put = (fields) => race.change((now) => ({ ...now, ...fields }));
const putLane = (name, lane) => race.change((now) => ({ ...now, lanes: { ...now.lanes, [name]: lane } }));

/** Return the sentences about two finished answers, and of which kind they are. */
export function verdict({ drafts, plain }) {
  const written = ({ content, reasoning, calls }) => JSON.stringify([content, reasoning, calls.map(({ name, input }) => [name, input])]);
  if (written(drafts) !== written(plain)) return { kind: "different", text: "The texts differ. This should never happen: please report it, with the prompt and the seed." };
  const ratio = plain.timings.predicted_ms / drafts.timings.predicted_ms;
  const { draft_n: drafted, draft_n_accepted: accepted } = drafts.timings;
  const passes = [drafts, plain].map(({ timings }) => timings.forwards);
  const why = whyUndrafted(drafts.timings);
  const reason = why ? `There were ${why}.` : `${accepted} of ${drafted} drafted tokens were right.`;
  const lead = passes.every(Boolean) ? `${plural(passes[0], "forward pass", "forward passes")} with drafts, ${passes[1]} without. ` : "";
  return inWords(ratio, passes.every(Boolean) ? passes[1] / passes[0] : Infinity, drafted, (words) => `${lead}${words} The texts are equal. ${reason}`);
}

/** Return what the times say. ratio: how many times as fast with drafts. most: what the forward passes that were saved can bring. */
function inWords(ratio, most, numDrafted, whole) {
  if (ratio < 1 + NOTABLE && ratio > 1 / (1 + NOTABLE)) return { kind: "equal", text: whole("No difference: with drafts the answer took as long.") };
  const isGain = ratio > 1;
  const times = isGain ? `${ratio.toFixed(2)} times as fast` : `${percent(1 / ratio - 1)} longer`;
  // A pass without drafts is the same work in both.
  const explained = isGain ? most : numDrafted ? Infinity : 1;
  if (explained < 1 + NOTABLE) return { kind: "equal", text: whole(`No difference but noise of the machine: the clock says ${times}.`) };
  if (!isGain) return { kind: "loss", text: whole(`A loss: with drafts the answer took ${times}.`) };
  const isNoise = ratio > explained * (1 + NOTABLE);
  const noise = isNoise ? ` Fewer forward passes explain ${explained.toFixed(2)} of it; the rest is noise of the machine.` : "";
  return { kind: "gain", text: whole(`With drafts ${times}.${noise}`) };
}

async function run(models, parameters, prompt, onFault) {
  const controller = new AbortController();
  const seed = parameters.seed === "" ? Math.floor(Math.random() * 2 ** 31) : parameters.seed;
  put({ seed, lanes: {}, stop: () => controller.abort() });
  try {
    const body = requestOf(models, { ...parameters, seed }, [{ role: "user", content: prompt }]);
    for (const [name, [, draft]] of Object.entries(LANES)) await runLane(name, { ...body, draft }, controller.signal);
  } catch (fault) {
    if (!isAbort(fault)) onFault(fault);
  }
  put({ stop: null });
}

async function runLane(name, body, signal) {
  const watch = new AbortController();
  const sentAt = performance.now();
  let answer = newAnswer();
  const tell = (wait) => putLane(name, { answer, wait: wait && { ...wait, sentAt } });
  tell(SENDING);
  watchWait(body.model, tell, watch.signal);
  try {
    for await (const step of ask(body, signal)) {
      answer = step.answer;
      watch.abort();
      tell(step.progress && answer.firstMs === null ? fromProgress(step.progress) : null);
    }
  } catch (fault) {
    answer = { ...answer, end: isAbort(fault) ? "stopped" : "failed" };
    throw fault;
  } finally {
    watch.abort();
    tell(null);
  }
}

export function Race({ models, onFault }) {
  const [parameters, setParameters] = useParameters("reprise.race");
  const { lanes, seed, stop } = useObserved(race, true);
  const fault = faultOf(parameters);
  useEscape(stop);
  const isOver = Object.keys(LANES).every((name) => ["done", "length"].includes(lanes[name]?.answer.end));
  const found = isOver && !stop && verdict({ plain: lanes.plain.answer, drafts: lanes.drafts.answer });
  return html`<section class="race">
    <h2>Race</h2>
    <p class="soft">The same prompt and seed, first without drafts, then with them. The texts must be equal; only the time may differ.</p>
    <${Parameters} models=${models} value=${parameters} onChange=${setParameters} />
    <${Composer} name="race" label="Prompt" action="Race" isKept start=${EDIT} isBusy=${!!stop} isBlocked=${!models.length || fault} warn=${() => fault} onStop=${stop}
      onSend=${(prompt) => run(models, parameters, prompt, onFault)} />
    <p class=${`verdict ${found ? found.kind : ""}`} role="status">${found ? `${found.text} Seed ${seed}.` : ""}</p>
    <div class="lanes">
      ${Object.entries(LANES).map(([name, [label]]) => lanes[name] && html`<div class="lane"><h3>${label}</h3>
        <article class="message assistant" aria-label="Answer"><${Answer} message=${lanes[name].answer} wait=${lanes[name].wait} showsOrigins isDone=${lanes[name].answer.end !== null} />
          <footer><span class="figures">${describe(lanes[name].answer)}</span></footer></article></div>`)}
    </div>
  </section>`;
}
