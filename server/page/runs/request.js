/** Make the body of a request from a conversation and its parameters. */

import { ApiError } from "../shared/api.js";
import { fenced } from "../chats/files.js";

export const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

/** Return the model that was chosen, or the first one if it is not there any more. */
export const chosen = (models, name) => (models.some(({ id }) => id === name) ? name : models[0]?.id);

/** Return what the model is shown of a message: its images, and one text. */
function shown(files, content) {
  const images = files.filter(({ url }) => url);
  const text = [...files.filter(({ url }) => !url).map(({ name, text }) => fenced(name, text)), content].filter(Boolean).join("\n\n");
  if (!images.length) return text;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** Return the messages as a request has them. Answers that ended before they said anything are left out. */
export function said(messages) {
  return messages
    .filter(({ role, content, calls }) => role !== "assistant" || content || calls?.length)
    .map(({ role, content, calls, files = [], tool_call_id }) => ({
      role,
      content: shown(files, content),
      ...(tool_call_id && { tool_call_id }),
      ...(calls?.length && {
        tool_calls: calls.map(({ id, name, input }) => ({ id, type: "function", function: { name, arguments: input } })),
      }),
    }));
}

/** Return the calls of the last answer that have no result yet. messages: the shown branch. */
export function unanswered(messages) {
  const at = messages.findLastIndex(({ role }) => role === "assistant");
  const results = messages.slice(at + 1).map(({ tool_call_id }) => tool_call_id);
  return at < 0 || messages.slice(at + 1).some(({ role }) => role === "user") ? [] : (messages[at].calls ?? []).filter(({ id }) => !results.includes(id));
}

/** Return the body of a request for the next answer. messages: see said(). Throws ApiError if the tools are no JSON. */
export function requestOf(models, { model, system, tools, ...numbers }, messages) {
  const body = { model: chosen(models, model), messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  for (const name of NUMBERS) if ((numbers[name] ?? "") !== "") body[name] = Number(numbers[name]);
  if (tools.trim()) body.tools = parsedTools(tools);
  return body;
}

export function parsedTools(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError("The tools are not JSON. Correct them under “Parameters”.", "tools", 0);
  }
}

/** About as many characters as a token has. Only a warning depends on it. */
const TOKEN_CHARACTERS = 4;

/** Return what a model would refuse of a conversation, in words; "" if nothing. model: its card, as /v1/models has it. */
export function warningOf(model, { system }, messages) {
  const files = messages.flatMap((one) => one.files ?? []);
  const numImages = files.filter(({ url }) => url).length;
  const most = model?.vision?.max_images;
  if (most && numImages > most) return `This conversation has ${numImages} images; a request may have ${most}.`;
  const texts = [system, ...messages.map(({ content }) => content), ...files.map(({ text }) => text)];
  const numTokens = Math.round(texts.reduce((sum, text) => sum + (text?.length ?? 0), 0) / TOKEN_CHARACTERS);
  const room = model?.context_length;
  return room && numTokens > room ? `This conversation has about ${numTokens} tokens; the model reads ${room}. Shorten the message, or begin a new chat.` : "";
}
