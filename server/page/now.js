/** What the server does now, from its metrics. Counts and times only: it has no texts. */

import { html, useEffect, useState } from "./vendor/preact.js";
import { send } from "./api.js";

const EVERY_MS = 1000;
const MIB = 2 ** 20;

/** Return the samples of Prometheus' text format by name: [{labels, value}]. */
export function parse(text) {
  const samples = {};
  for (const line of text.split("\n")) {
    const found = /^([a-z_]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(/(\w+)="([^"]*)"/g)].map((one) => [one[1], one[2]]));
    (samples[found[1]] ??= []).push({ labels, value: Number(found[3]) });
  }
  return samples;
}

const sum = (samples, name) => (samples[name] ?? []).reduce((total, one) => total + one.value, 0);

/** Return the value under which a share of what a histogram counted lies, by its buckets. */
export function quantile(samples, name, share) {
  const buckets = new Map();
  for (const { labels, value } of samples[`${name}_bucket`] ?? []) {
    const limit = labels.le === "+Inf" ? Infinity : Number(labels.le);
    buckets.set(limit, (buckets.get(limit) ?? 0) + value);
  }
  const limits = [...buckets.keys()].sort((a, b) => a - b);
  const all = buckets.get(Infinity) ?? 0;
  return all ? limits.find((limit) => buckets.get(limit) >= share * all) : null;
}

const seconds = (value) => (value === null ? "–" : value === Infinity ? "more" : value < 1 ? `≤ ${Math.round(value * 1000)} ms` : `≤ ${value} s`);

export function Now({ onFault }) {
  const [reading, setReading] = useState(null);
  useEffect(() => {
    let before = null;
    let timer = 0;
    let isOver = false;
    const look = async () => {
      try {
        const samples = parse(await (await send("metrics")).text());
        const at = performance.now();
        const tokens = sum(samples, "reprise_completion_tokens_total");
        const rate = before && (1000 * (tokens - before.tokens)) / (at - before.at);
        before = { tokens, at };
        if (!isOver) setReading({ samples, rate });
      } catch (fault) {
        onFault(fault);
      }
      if (!isOver) timer = setTimeout(look, EVERY_MS);
    };
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  if (!reading) return html`<p role="status">Looking …</p>`;
  const { samples, rate } = reading;
  const tile = (label, value) => html`<div class="tile"><dt>${label}</dt><dd>${value}</dd></div>`;
  const bySource = (samples.reprise_drafted_tokens_total ?? []).map(({ labels, value }) => {
    const accepted = samples.reprise_accepted_tokens_total?.find((one) => one.labels.source === labels.source)?.value ?? 0;
    return html`<tr><td>${labels.source}</td><td>${value}</td><td>${accepted}</td><td>${value ? `${Math.round((100 * accepted) / value)} %` : ""}</td></tr>`;
  });
  return html`<section class="now">
    <dl class="tiles">
      ${tile("rows", sum(samples, "reprise_rows"))}
      ${tile("waiting", sum(samples, "reprise_waiting"))}
      ${tile("tokens/s", rate === null ? "–" : rate.toFixed(0))}
      ${tile("first token, half", seconds(quantile(samples, "reprise_time_to_first_token_seconds", 0.5)))}
      ${tile("first token, 95 %", seconds(quantile(samples, "reprise_time_to_first_token_seconds", 0.95)))}
      ${tile("between tokens, 95 %", seconds(quantile(samples, "reprise_inter_token_seconds", 0.95)))}
      ${tile("memory", `${(sum(samples, "reprise_mlx_active_bytes") / MIB).toFixed(0)} MiB`)}
      ${tile("cached prefixes", `${(sum(samples, "reprise_prefix_cache_bytes") / MIB).toFixed(1)} MiB`)}
    </dl>
    <table><caption>Drafts since the server started</caption>
      <thead><tr><th>source</th><th>drafted</th><th>accepted</th><th></th></tr></thead><tbody>${bySource}</tbody></table>
  </section>`;
}
