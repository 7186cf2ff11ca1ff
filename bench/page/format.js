// Format numbers and names for people; missing values become a dash.
import { isNumber } from "./dom.js";

const MISSING = "–";
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
  "October", "November", "December"];

const shown = (format) => (value) => (isNumber(value) ? format(value) : MISSING);

/** 2.41 as "2.41×". */
export const times = shown((value) => `${value.toFixed(value >= 10 ? 1 : 2)}×`);
/** 0.634 as "63 %"; shares below 10 % keep one decimal. */
export const share = shown((value) => {
  const percent = 100 * value;
  return `${percent !== 0 && Math.abs(percent) < 9.95 ? percent.toFixed(1) : percent.toFixed(0)} %`;
});
/** Three significant digits, with thousands separators. */
export const number = shown((value) => {
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -3) return value.toExponential(1).replace("e-", "e−");
  return value.toLocaleString("en-GB", { maximumFractionDigits: Math.max(0, 2 - size) });
});
/** A whole number, with thousands separators. */
export const whole = shown((value) => Math.round(value).toLocaleString("en-GB"));
export const fixed2 = shown((value) => value.toFixed(2));
export const fixed3 = shown((value) => value.toFixed(3));
export const milliseconds = shown((value) => `${number(value)} ms`);
export const microseconds = shown((value) => `${number(value)} µs`);
export const perSecond = shown((value) => `${number(value)} tok/s`);
/** 65536 as "64 Ki", as table sizes are usually written. */
export const binary = shown((value) => {
  for (const [unit, size] of [["Mi", 2 ** 20], ["Ki", 2 ** 10]]) {
    if (value >= size) return `${number(value / size)} ${unit}`;
  }
  return number(value);
});
/** Bytes as "8.0 GiB". */
export const bytes = shown((value) => (value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(1)} MiB`));

/** "2026-11-21T15:24:00+00:00" as "21 November 2026". */
export function day(iso) {
  const found = /^(\d{4})-(\d{2})-(\d{2})/.exec(String(iso ?? ""));
  return found && MONTHS[found[2] - 1] ? `${Number(found[3])} ${MONTHS[found[2] - 1]} ${found[1]}` : "an unknown day";
}

/** "a, b and c". */
export function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** "1 workload", "3 workloads". */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** "decode_tps" as "decode tps": the heading of a field without a label. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

/** What can be plotted: its label, its axis, its format, and the value of plain decoding (reference). */
export const MEASURES = {
  speedup: { label: "speedup", axis: "speedup over plain decoding", format: times, reference: 1 },
  decode_tps: { label: "decoding speed", axis: "tokens per second while decoding", format: number },
  tokens_per_forward: { label: "tokens per forward", axis: "tokens per forward pass", format: fixed2, reference: 1 },
  acceptance: { label: "acceptance", axis: "share of drafted tokens accepted", format: share, domain: [0, 1] },
  drafted_share: { label: "drafted share", axis: "share of the answer that was drafted", format: share, domain: [0, 1] },
  ttft_ms: { label: "time to first token", axis: "milliseconds to the first token", format: number },
  drafter_us_per_token: { label: "drafter time", axis: "microseconds of drafting per token", format: number },
};

/** The formats of fields, including those in MEASURES. */
export const FORMATS = {
  ...Object.fromEntries(Object.entries(MEASURES).map(([name, measure]) => [name, measure.format])),
  entries: whole, bytes, occupancy: share, collisions: whole, overwritten: share, foreign_drafts: share, known: share,
  known_again: share, threshold: number, repetitive: share, measured_speedup: times, same_answer: share,
};

/** Formatted text without trailing zeros of a fraction, for ticks. */
export function short(text) {
  return text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

/** Text cut to a maximum number of letters. */
export function cut(text, letters) {
  return text.length > letters ? `${text.slice(0, Math.max(1, Math.floor(letters) - 1))}…` : text;
}

/** Any value of a document as text. */
export function anything(value) {
  if (value === null || value === undefined) return MISSING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? whole(value) : number(value);
  if (Array.isArray(value)) return value.map(anything).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, one]) => `${name} ${anything(one)}`).join(", ");
  return String(value);
}
