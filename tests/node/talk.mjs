// Talks to a server with OpenAI's client and prints what it got as one JSON object; test_openai_node.py asserts.
// Usage: node talk.mjs ADDRESS
import OpenAI, * as sdk from "openai";

const address = process.argv[2];
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none", maxRetries: 0 });
const model = "demo";
const hello = [{ role: "user", content: "Hello!" }];
const question = [{ role: "user", content: "Find the lantern with color red and size 12." }];
const greedy = { model, temperature: 0 };

const lantern = {
  type: "object",
  properties: { color: { type: "string" }, size: { type: "integer" } },
  required: ["color", "size"],
  additionalProperties: false,
};
const named = { name: "find_lantern", description: "Find the lantern.", parameters: lantern, strict: true };
const tools = [{ type: "function", function: named }];
const weather = {
  type: "object",
  properties: { city: { enum: ["Oslo", "Rome"] }, wet: { type: "boolean" } },
  required: ["city", "wet"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "weather", schema: weather, strict: true } };

async function chat() {
  const { data, response, request_id } = await client.chat.completions
    .create({ ...greedy, messages: hello, n: 2 })
    .withResponse();
  return { answer: data, status: response.status, request_id };
}

async function stream() {
  const chunks = [];
  const request = { ...greedy, messages: hello, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(request)) chunks.push(chunk);
  return chunks;
}

async function helper() {
  const runner = client.chat.completions.stream({ ...greedy, messages: hello });
  const seen = { deltas: "", events: [] };
  runner.on("content.delta", ({ delta }) => (seen.deltas += delta));
  for (const event of ["connect", "chunk", "content.done", "finalChatCompletion", "end"]) {
    runner.once(event, () => seen.events.push(event));
  }
  const content = await runner.finalContent();
  return { ...seen, content, final: await runner.finalChatCompletion() };
}

async function calls() {
  const runner = client.chat.completions.stream({ ...greedy, messages: question, tools });
  const done = [];
  runner.on("tool_calls.function.arguments.done", (event) => done.push(event));
  return { message: await runner.finalMessage(), done };
}

async function loop(isStreaming) {
  const asked = [];
  const price = ({ color, size }) => {
    asked.push({ color, size });
    return JSON.stringify({ price: 7 * size });
  };
  const run = { ...named, function: price, parse: JSON.parse };
  const request = { ...greedy, messages: question, tools: [{ type: "function", function: run }] };
  const runner = client.chat.completions.runTools({ ...request, stream: isStreaming });
  const content = await runner.finalContent();
  return { asked, content, roles: runner.messages.map((message) => message.role) };
}

async function structured() {
  const answer = await client.chat.completions.parse({ ...greedy, messages: hello, response_format: format });
  const stream = client.chat.completions.stream({ ...greedy, messages: hello, response_format: format });
  return { content: answer.choices[0].message.content, streamed: await stream.finalContent() };
}

async function responses() {
  const first = await client.responses.create({ ...greedy, input: "Hello!" });
  const next = await client.responses.create({ ...greedy, input: "Thanks!", previous_response_id: first.id });
  const stream = client.responses.stream({ ...greedy, input: "Hello!" });
  const types = [];
  let said = "";
  for await (const event of stream) {
    types.push(event.type);
    if (event.type === "response.output_text.delta") said += event.delta;
  }
  const final = await stream.finalResponse();
  const text = { format: { type: "json_schema", name: "weather", schema: weather, strict: true } };
  const parsed = await client.responses.parse({ ...greedy, input: "Hello!", text });
  const named = { type: "function", name: "find_lantern", parameters: lantern, strict: true };
  const called = await client.responses.create({ ...greedy, input: question, tools: [named] });
  const items = [];
  for await (const item of client.responses.inputItems.list(next.id)) items.push(item);
  return { first, next, types, said, final, parsed: parsed.output_text, called: called.output, items };
}

async function others() {
  const names = [];
  for await (const one of client.models.list()) names.push(one.id);
  const plain = await client.completions.create({ ...greedy, prompt: ["def", "The"], max_tokens: 4 });
  return { names, plain };
}

async function refused(fields, path = "chat") {
  try {
    if (path === "embeddings") await client.embeddings.create({ model, input: "Hello!" });
    else await client.chat.completions.create({ model, messages: hello, ...fields });
  } catch (fault) {
    const kind = Object.keys(sdk).find((name) => fault.constructor === sdk[name]);
    const { status, code, param, type, requestID } = fault;
    return { kind, status, code, param, type, request_id: requestID };
  }
  return { kind: "none" };
}

async function timeout() {
  const endless = { ...greedy, messages: hello, logit_bias: { [process.argv[3]]: -100 }, max_tokens: 8000 };
  try {
    await client.chat.completions.create(endless, { timeout: 300 });
  } catch (fault) {
    return fault instanceof sdk.APIConnectionTimeoutError;
  }
  return false;
}

async function leaving() {
  // Forbidding the end token makes an answer that would run on to the end of the context.
  const endless = { ...greedy, messages: hello, stream: true, logit_bias: { [process.argv[3]]: -100 }, max_tokens: 8000 };
  const found = async (path) => (await fetch(`${address}${path}`)).json();
  const running = async () => (await found("/health")).running;
  const ended = async () => (await found("/v1/requests")).data[0].finish_reason;
  const stream = await client.chat.completions.create(endless);
  let during;
  for await (const _ of stream) {
    during = await running();
    stream.controller.abort();
    break;
  }
  const left = performance.now();
  const isFreed = async () => !(await running()) && (await ended()) === "cancelled";
  while (!(await isFreed()) && performance.now() - left < 100_000) await new Promise((go) => setTimeout(go, 20));
  return { during, after: await running(), ended: await ended() };
}

const said = {
  chat: await chat(),
  stream: await stream(),
  helper: await helper(),
  calls: await calls(),
  loop: await loop(false),
  streamed_loop: await loop(true),
  structured: await structured(),
  responses: await responses(),
  others: await others(),
  refused: {
    model: await refused({ model: "gpt-4o" }),
    temperature: await refused({ temperature: 3 }),
    wrong: await refused({ top_p: "much" }),
    choice: await refused({ tools, tool_choice: { type: "function", function: { name: "fly" } } }),
    image: await refused({ messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] }),
    embeddings: await refused({}, "embeddings"),
  },
  timeout: await timeout(),
  leaving: await leaving(),
};
console.log(JSON.stringify(said));
