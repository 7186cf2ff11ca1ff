// Asks a server for embeddings with OpenAI's client and prints what it got as one JSON object; test_embedding_clients.py asserts.
// Usage: node embed.mjs ADDRESS
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const texts = ["The cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose again."];
const vectors = (answer) => answer.data.map((one) => one.embedding);

async function refused(body) {
  try {
    await client.embeddings.create(body);
  } catch (fault) {
    return { kind: fault.constructor.name, status: fault.status, code: fault.code, param: fault.param };
  }
  return {};
}

const all = await client.embeddings.create({ model: "model", input: texts });
console.log(JSON.stringify({
  all: vectors(all),
  usage: all.usage,
  plain: vectors(await client.embeddings.create({ model: "model", input: texts, encoding_format: "float" })),
  short: vectors(await client.embeddings.create({ model: "model", input: texts[0], dimensions: 8 })),
  refused: [await refused({ model: "model", input: ["a", ""] }), await refused({ model: "demo", input: "a" })],
}));
