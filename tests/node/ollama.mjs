// Talks to a server with Ollama's client and prints what it got as one JSON object; test_ollama_packages.py asserts.
// Usage: node ollama.mjs ADDRESS
import { Ollama } from "ollama";

const host = process.argv[2];
const client = new Ollama({ host });
const greedy = { model: "demo", options: { temperature: 0 } };
const hello = [{ role: "user", content: "Hello!" }];
const question = [{ role: "user", content: "Find the lantern with color red and size 12." }];
const lantern = {
  type: "object",
  properties: { color: { type: "string" }, size: { type: "integer" } },
  required: ["color", "size"],
};
const weather = { type: "object", properties: { city: { enum: ["Oslo", "Rome"] } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "find_lantern", description: "Find it.", parameters: lantern } }];

async function streamed(parts) {
  const lines = [];
  for await (const line of await parts) lines.push(line);
  return lines;
}

async function refused(call) {
  try {
    await call();
  } catch (fault) {
    return { name: fault.name, error: fault.error, status: fault.status_code };
  }
  return {};
}

async function leaving() {
  // The bundled model goes on and on within a string.
  const running = async () => (await (await fetch(`${host}/health`)).json()).running;
  const stream = await client.chat({ ...greedy, messages: hello, format: lantern, stream: true });
  let during = 0;
  for await (const _ of stream) {
    during = await running();
    break;
  }
  client.abort();
  while (await running()) await new Promise((go) => setTimeout(go, 20));
  return { during, after: await running() };
}

const said = {
  chat: await client.chat({ ...greedy, messages: hello }),
  stream: await streamed(client.chat({ ...greedy, messages: hello, stream: true })),
  calls: await client.chat({ ...greedy, messages: question, tools }),
  structured: await client.chat({ ...greedy, messages: hello, format: weather }),
  generate: await client.generate({ ...greedy, prompt: "Hello!" }),
  raw: await client.generate({ ...greedy, prompt: "The", raw: true, options: { temperature: 0, num_predict: 4 } }),
  list: await client.list(),
  show: await client.show({ model: "demo:latest" }),
  ps: await client.ps(),
  version: await client.version(),
  refused: {
    model: await refused(() => client.chat({ model: "llama3.2", messages: hello })),
    stream: await refused(() => client.chat({ ...greedy, messages: hello, stream: true, format: "xml" })),
    embed: await refused(() => client.embed({ model: "demo", input: "a" })),
    pull: await refused(() => client.pull({ model: "llama3.2" })),
    delete: await refused(() => client.delete({ model: "demo" })),
  },
  leaving: await leaving(),
};
console.log(JSON.stringify(said));
