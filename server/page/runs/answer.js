/** One streamed answer: text, reasoning, tool calls, where the text comes from, how it ended, and how fast it was. */

import { events } from "../shared/api.js";
import { seconds } from "../shared/words.js";

/** Return an answer to which nothing has been added. end: null until it is over; see ENDS. */
export const newAnswer = (fields) => ({
  role: "assistant",
  content: "",
  reasoning: "",
  calls: [],
  trace: [],
  end: null,
  timings: null,
  firstMs: null,
  ...fields,
});

/** How an answer can end, with the words for it; none where there is nothing to say. */
export const ENDS = {
  done: "",
  edited: "You changed this answer.",
  stopped: "You stopped this answer.",
  length: "Cut off: it has as many tokens as it may have.",
  cut: "Cut off: the page was closed before the answer was complete.",
  lost: "Cut off: the connection to the server was lost.",
  failed: "This answer failed.",
};

/** Whether a model can go on with an answer: what is there must be text, and nothing but text. */
export const canContinue = ({ end, content, calls }) => end !== null && end !== "done" && content.trim() !== "" && !calls.length;

/** Return the answer with a chunk added. Answers are never changed in place. ms: since the request was sent. */
export function withChunk(answer, chunk, ms) {
  const next = { ...answer };
  if (chunk.timings) next.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return next;
  const delta = choice.delta ?? {};
  next.content += delta.content ?? "";
  next.reasoning += delta.reasoning_content ?? "";
  if (delta.tool_calls) next.calls = withCalls(answer.calls, delta.tool_calls);
  if (choice.draft_trace) next.trace = withRuns(answer.trace, choice.draft_trace);
  if (choice.finish_reason) next.end = choice.finish_reason === "length" ? "length" : "done";
  if (next.firstMs === null && (delta.content || delta.reasoning_content || delta.tool_calls)) next.firstMs = ms;
  return next;
}

function withCalls(calls, added) {
  const next = [...calls];
  for (const { index, id, function: called, custom } of added) {
    const before = next[index] ?? { id, name: "", input: "" };
    next[index] = {
      id: before.id,
      name: before.name + (called?.name ?? custom?.name ?? ""),
      input: before.input + (called?.arguments ?? custom?.input ?? ""),
    };
  }
  return next;
}

function withRuns(runs, added) {
  const next = [...runs];
  for (const { text, source } of added) {
    const last = next.at(-1);
    if (last?.source === source) next[next.length - 1] = { text: last.text + text, source };
    else next.push({ text, source });
  }
  return next;
}

/** Yield {answer, progress} as an answer grows; progress: of the prompt, null once there is text.
 *
 * body: of /v1/chat/completions. start: the answer that is continued, or a new one. Throws ApiError.
 */
export async function* ask(body, signal, start = newAnswer()) {
  let answer = start;
  const sentAt = performance.now();
  const request = { ...body, stream: true, timings_per_token: true, return_progress: true };
  for await (const chunk of events("v1/chat/completions", { body: request, signal })) {
    answer = withChunk(answer, chunk, performance.now() - sentAt);
    yield { answer, progress: chunk.prompt_progress ?? null };
  }
}

/** Return "no drafts: nothing matched"; "" if more than next to nothing was drafted. why: the server's words. */
export const undrafted = (isAnyDrafted, why) => (why ? `${isAnyDrafted ? "few" : "no"} drafts: ${why}` : "");

/** The same of an answer's timings, once they are complete. */
export const whyUndrafted = ({ draft_n, gate }) => undrafted(draft_n > 0, gate?.undrafted);

/** Return how many tokens an answer and its prompt have; 0 if that is not known. An imported file may have any timings. */
export function numTokens(answer) {
  const { cache_n, prompt_n, predicted_n } = answer?.timings ?? {};
  return [cache_n, prompt_n, predicted_n].every(Number.isFinite) ? cache_n + prompt_n + predicted_n : 0;
}

/** Return "3.2 tokens a forward pass · 48 tokens/s · first token after 0.12 s", as far as it is known. */
export function describe({ timings, firstMs, end }) {
  const parts = [];
  if (timings?.forwards) parts.push(`${(timings.predicted_n / timings.forwards).toFixed(2)} tokens a forward pass`);
  const rate = timings?.predicted_per_second;
  if (rate) parts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
  if (firstMs !== null && firstMs !== undefined) parts.push(`first token after ${seconds(firstMs / 1000)}`);
  if (timings && end === "done") parts.push(whyUndrafted(timings));
  return parts.filter(Boolean).join(" · ");
}
