/** What an answer waits for, in words. */

import { getJson } from "../shared/api.js";
import { percent, plural, seconds } from "../shared/words.js";

const EVERY_MS = 400;
/** A shorter wait needs no clock. */
const CLOCK_AFTER_S = 2;

export const SENDING = { words: "Sending …" };

/** Return what a request waits for, from /health; null if that says nothing. */
export function fromHealth({ running, waiting, models = [] }, model) {
  const one = models.find(({ id, state }) => state === "loading" && id === model) ?? models.find(({ state }) => state === "loading");
  if (one) {
    const phase = one.phase ? `: ${one.phase}` : "";
    return { words: `Loading ${one.id}${phase}${one.progress ? `, ${percent(one.progress)}` : ""}`, share: one.progress };
  }
  if (waiting && !running) return { words: "Waiting to begin …" };
  if (waiting) return { words: `Waiting for a row: ${plural(running, "answer")} ${running === 1 ? "is" : "are"} being written` };
  return { words: "Reading the prompt …" };
}

/** Return how far a prompt is. progress: as the stream has it, {total, cache, processed}. */
export function fromProgress({ total, processed }) {
  return { words: `Reading the prompt, ${percent(processed, total)}`, share: processed / total };
}

/** Return the words for a wait, with how long it has taken. sentAt: by performance.now(). */
export function told({ words, sentAt }) {
  const taken = (performance.now() - sentAt) / 1000;
  return taken < CLOCK_AFTER_S ? words : `${words} · ${seconds(Math.floor(taken)).replace(".0", "")}`;
}

/** Ask what a request waits for until the signal says to stop, and tell it. */
export async function watchWait(model, tell, signal) {
  while (!signal.aborted) {
    try {
      const found = fromHealth(await getJson("health", { signal }), model);
      if (!signal.aborted) tell(found);
    } catch {
      // The request itself says what is wrong with the server.
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}
