/** Make the body of a request from a conversation and its parameters. */

import { fenced, isImage } from "../chats/files.js";

export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const SWITCHES = { on: true, off: false };

/** Return the model that was chosen, or the first one if it is not there any more. */
export const chosen = (models, name) => (models.some(({ id }) => id === name) ? name : models[0]?.id);

/** Return what the model is shown of a message: its images and PDFs, and one text. */
function shown(files, content) {
  const others = files.filter(({ url }) => url);
  const text = [...files.filter(({ url }) => !url).map(({ name, text }) => fenced(name, text)), content].filter(Boolean).join("\n\n");
  if (!others.length) return text;
  const parts = others.map((one) => (isImage(one) ? { type: "image_url", image_url: { url: one.url } } : { type: "file", file: { filename: one.name, file_data: one.url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** Return the messages as a request has them. Answers that ended before they said anything are left out. */
export function said(messages) {
  return messages
    .filter(({ role, content, calls }) => role !== "assistant" || content || calls?.length)
    .map(({ role, content, reasoning, calls, files = [], tool_call_id }) => ({
      role,
      content: shown(files, content),
      ...(reasoning && { reasoning_content: reasoning }),
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

/** Return the body of a request for the next answer. messages: see said(). The parameters must be JSON where notJson() looks. */
export function requestOf(models, { model, system, tools, schema, thinking, ...numbers }, messages) {
  const body = { model: chosen(models, model), messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  for (const name of NUMBERS) if ((numbers[name] ?? "") !== "") body[name] = Number(numbers[name]);
  if (tools.trim()) body.tools = JSON.parse(tools);
  if (schema.trim()) body.response_format = { type: "json_schema", json_schema: { schema: JSON.parse(schema) } };
  // Templates name the switch so or so.
  if (Object.hasOwn(SWITCHES, thinking)) body.chat_template_kwargs = { enable_thinking: SWITCHES[thinking], thinking: SWITCHES[thinking] };
  else if (thinking) body.reasoning_effort = thinking;
  return body;
}

/** Return the names of the parameters that are not JSON, though they must be. */
export const notJson = (parameters) => ["tools", "schema"].filter((name) => {
  try {
    return parameters[name].trim() && JSON.parse(parameters[name]) === undefined;
  } catch {
    return true;
  }
});

/** The same in words, "" if there are none: nothing can be asked until they are corrected. */
export const faultOf = (parameters) => notJson(parameters).map((name) => `What stands as ${name} under “Parameters” is not JSON. Correct it there.`).join(" ");

/** About as many characters as a token has. Only a warning depends on it. */
const TOKEN_CHARACTERS = 4;

/** Return what a model would refuse of a conversation, in words; "" if nothing. model: its card, as /v1/models has it. */
export function warningOf(model, { system }, messages) {
  const files = messages.flatMap((one) => one.files ?? []);
  const numImages = files.filter(isImage).length;
  const most = model?.vision?.max_images;
  const numMib = files.reduce((sum, { url }) => sum + (url?.length ?? 0), 0) / 2 ** 20;
  if (numMib > 31) return `This conversation has ${Math.round(numMib)} MiB of files; a request may have 31. Attach less, or begin a new chat.`;
  if (most && numImages > most) return `This conversation has ${numImages} images; a request may have ${most}.`;
  const texts = [system, ...messages.map(({ content }) => content), ...files.map(({ text }) => text)];
  const numTokens = Math.round(texts.reduce((sum, text) => sum + (text?.length ?? 0), 0) / TOKEN_CHARACTERS);
  const room = model?.context_length;
  return room && numTokens > room ? `This conversation has about ${numTokens} tokens; the model reads ${room}. Shorten the message, or begin a new chat.` : "";
}
