// Print, as JSON, for every token from START on the log probability that llama.cpp gives it, and the likeliest
// token in its place: node logprobs.mjs MODEL.gguf IDS.json START
import {readFileSync, writeSync} from "node:fs";
import {getLlama} from "node-llama-cpp";

const [modelPath, file, start] = process.argv.slice(2);
const ids = JSON.parse(readFileSync(file, "utf8"));
const llama = await getLlama({build: "never", gpu: false, logLevel: "error"});
const model = await llama.loadModel({modelPath});
const context = await model.createContext({
    contextSize: ids.length + 8,
    flashAttention: false,
    // More of them wait for each other in busy loops, for minutes on a busy machine.
    threads: 1,
    experimentalKvCacheKeyType: "F32",
    experimentalKvCacheValueType: "F32"
});
const asked = ids.map((id, at) => {
    const logits = {filter: {tokens: [ids[at + 1]], includeTop: 1}};
    return at + 1 >= start && at + 1 < ids.length ? [id, {generateNext: {logits, totalLogitWeight: true}}] : id;
});
const said = await context.getSequence().controlledEvaluate(asked);
const answers = ids.slice(start).map((id, at) => {
    const {logits, totalLogitWeight} = said[Number(start) + at - 1].next;
    const [likeliest, most] = [...logits].reduce((one, other) => (other[1] > one[1] ? other : one));
    return [logits.get(id) - most - Math.log(totalLogitWeight), likeliest];
});
const text = JSON.stringify(answers) + "\n";
for (let at = 0; at < text.length; ) at += writeSync(1, text.slice(at));
process.exit(0);
