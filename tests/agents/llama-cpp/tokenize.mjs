// Print the token ids of a text, as JSON: node tokenize.mjs MODEL.gguf TEXT.txt
import {readFileSync, writeSync} from "node:fs";
import {getLlama} from "node-llama-cpp";

const [modelPath, text] = process.argv.slice(2);
const llama = await getLlama({build: "never", gpu: false, logLevel: "error"});
const model = await llama.loadModel({modelPath, vocabOnly: true});
const ids = model.tokenize(readFileSync(text, "utf8"), false, "trimLeadingSpace");
writeSync(1, JSON.stringify(Array.from(ids)) + "\n");
process.exit(0);
