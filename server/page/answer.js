/** Collect one streamed answer: text, reasoning, tool calls, where the text comes from, and how fast it is. */

import { events } from "./api.js";

/** Return an answer to which nothing has been added. */
export const newAnswer = () => ({
  role: "assistant",
  content: "",
  reasoning: "",
  calls: [],
  trace: [],
  notice: "",
  finish: null,
  timings: null,
  startedAt: performance.now(),
  firstAt: null,
});

/** Return the answer with a chunk added. Answers are never changed in place. */
export function withChunk(answer, chunk) {
  if (chunk.comment !== undefined) return { ...answer, notice: chunk.comment };
  const next = { ...answer, notice: "" };
  if (chunk.timings) next.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return next;
  const delta = choice.delta ?? {};
  next.content += delta.content ?? "";
  next.reasoning += delta.reasoning_content ?? "";
  next.calls = withCalls(answer.calls, delta.tool_calls ?? []);
  next.trace = withRuns(answer.trace, choice.draft_trace ?? []);
  next.finish = choice.finish_reason ?? answer.finish;
  if (next.firstAt === null && (delta.content || delta.reasoning_content || delta.tool_calls)) {
    next.firstAt = performance.now();
  }
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

/** Yield an answer as it grows. body: of /v1/chat/completions. Throws ApiError. */
export async function* ask(body, signal) {
  let answer = newAnswer();
  const request = { ...body, stream: true, timings_per_token: true };
  for await (const chunk of events("v1/chat/completions", { body: request, signal })) {
    answer = withChunk(answer, chunk);
    yield answer;
  }
}

/** Return "no drafts: nothing matched"; "" if more than next to nothing was drafted. why: the server's words. */
export const undrafted = (isAnyDrafted, why) => (why ? `${isAnyDrafted ? "few" : "no"} drafts: ${why}` : "");

/** The same of an answer's timings, once they are complete. */
export const whyUndrafted = ({ draft_n, gate }) => undrafted(draft_n > 0, gate?.undrafted);

/** Return "3.2 tokens a forward pass · 48 tokens/s · first token 120 ms", as far as it is known. */
export function describe({ timings, startedAt, firstAt }, isDone) {
  const parts = [];
  if (timings?.forwards) parts.push(`${(timings.predicted_n / timings.forwards).toFixed(2)} tokens a forward pass`);
  const rate = timings?.predicted_per_second;
  if (rate) parts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
  if (firstAt !== null) parts.push(`first token ${(firstAt - startedAt).toFixed(0)} ms`);
  if (timings && isDone) parts.push(whyUndrafted(timings));
  return parts.filter(Boolean).join(" · ");
}
