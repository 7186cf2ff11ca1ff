/** What the server does now, from its metrics and its list of requests. Counts and times only: it has no texts. */

import { html, useEffect, useState } from "./vendor/preact.js";
import { undrafted } from "./answer.js";
import { getJson, send } from "./api.js";
import { parse, quantile, sum, sumBy } from "./metrics.js";

const EVERY_MS = 1000;
const MAX_RATES = 120;
const MIB = 2 ** 20;

const seconds = (value) =>
  value === null ? "–" : value === Infinity ? "more" : value < 1 ? `≤ ${Math.round(value * 1000)} ms` : `≤ ${value} s`;
const mib = (bytes) => `${(bytes / MIB).toFixed(bytes < 100 * MIB ? 1 : 0)} MiB`;
const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

/** Ask for everything once. before: the reading before this one, or null. */
async function look(before) {
  const [metrics, requests] = await Promise.all([send("metrics").then((got) => got.text()), getJson("v1/requests")]);
  const samples = parse(metrics);
  const at = performance.now();
  // Every token but the first of an answer is counted with the time since the one before it, as it comes.
  const tokens = sum(samples, "reprise_inter_token_seconds_count");
  const rate = before ? (1000 * (tokens - before.tokens)) / (at - before.at) : null;
  const rates = [...(before?.rates ?? []), ...(rate === null ? [] : [rate])].slice(-MAX_RATES);
  return { samples, requests: requests.data, at, tokens, rate, rates };
}

/** The rates of the last two minutes as a line. */
function Line({ rates }) {
  const most = Math.max(1, ...rates);
  const points = rates.map((rate, at) => `${MAX_RATES - rates.length + at},${(40 - (38 * rate) / most).toFixed(1)}`);
  return html`<svg class="line" viewBox=${`0 0 ${MAX_RATES} 40`} preserveAspectRatio="none" role="img"
    aria-label=${`Tokens a second in the last two minutes, at most ${most.toFixed(0)}`}><polyline points=${points.join(" ")} /></svg>`;
}

const Table = ({ caption, head, rows, nothing }) => html`<div class="scrolled"><table><caption>${caption}</caption>
  <thead><tr>${head.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
  <tbody>${rows.length ? rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`) : html`<tr><td colspan=${head.length}>${nothing}</td></tr>`}</tbody>
</table></div>`;

function requestRow(one) {
  const drafts = Object.entries(one.drafts).map(([source, [drafted, accepted]]) => `${source} ${accepted}/${drafted}`);
  return [
    new Date(one.time).toLocaleTimeString(), one.model ? `${one.endpoint} (${one.model})` : one.endpoint, one.status, one.error ?? one.finish_reason ?? "",
    one.num_prompt_tokens, one.num_cached_tokens ?? "", one.num_completion_tokens,
    one.num_forwards ? (one.num_completion_tokens / one.num_forwards).toFixed(2) : "",
    [...drafts, undrafted(drafts.length, one.undrafted)].filter(Boolean).join(", "), one.first_token_ms === null ? "" : `${one.first_token_ms.toFixed(0)} ms`, `${(one.total_ms / 1000).toFixed(1)} s`,
  ];
}

export function Now({ onFault }) {
  const [reading, setReading] = useState(null);
  useEffect(() => {
    let last = null;
    let timer = 0;
    let isOver = false;
    const next = async () => {
      try {
        last = await look(last);
        if (!isOver) setReading(last);
      } catch (fault) {
        last = null;
        onFault(fault);
      }
      if (!isOver) timer = setTimeout(next, EVERY_MS);
    };
    next();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  if (!reading) return html`<p role="status">Looking …</p>`;
  const { samples, requests, rate, rates } = reading;
  const all = (name) => sum(samples, `reprise_${name}`);
  const time = (name, share) => seconds(quantile(samples, `reprise_${name}_seconds`, share));
  const tile = (label, value, more) => html`<div class="tile"><dt>${label}</dt><dd>${value}</dd>${more && html`<dd class="more">${more}</dd>`}</div>`;
  const hits = all("prefix_cache_hits_total");
  const accepted = new Map(sumBy(samples, "reprise_accepted_tokens_total", "source"));
  const drafted = sumBy(samples, "reprise_drafted_tokens_total", "source");
  const reasons = sumBy(samples, "reprise_undrafted_steps_total", "reason").sort(([, a], [, b]) => b - a);
  const latest = requests.find((one) => one.undrafted);
  const gate = sumBy(samples, "reprise_gate_decisions_total", "decision").filter(([, count]) => count);
  return html`<section class="now">
    <dl class="tiles">
      ${tile("Rows", all("rows"), `${all("waiting")} waiting`)}
      ${tile("Tokens/s", rate === null ? "–" : rate.toFixed(0), html`<${Line} rates=${rates} />`)}
      ${tile("First token", time("time_to_first_token", 0.5), `95 %: ${time("time_to_first_token", 0.95)}`)}
      ${tile("Between tokens", time("inter_token", 0.5), `95 %: ${time("inter_token", 0.95)}`)}
      ${tile("Memory", mib(all("mlx_active_bytes")), `at most ${mib(all("mlx_peak_bytes"))}`)}
      ${tile("Prefix cache", mib(all("prefix_cache_bytes")), `${percent(hits, hits + all("prefix_cache_misses_total"))} of prompts had a part in it`)}
      ${tile("N-gram table", percent(all("ngram_table_occupied_entries"), all("ngram_table_entries")), `${all("ngram_table_occupied_entries")} entries`)}
      ${tile("Tokens a forward pass", all("forwards_total") ? (all("completion_tokens_total") / all("forwards_total")).toFixed(2) : "–", "of finished answers")}
    </dl>
    <${Table} caption="Drafts since the server started" head=${["source", "tokens drafted", "accepted", ""]} nothing="None yet."
      rows=${drafted.map(([source, count]) => [source, count, accepted.get(source) ?? 0, percent(accepted.get(source) ?? 0, count)])} />
    <${Table} caption="Steps without a draft since the server started, by reason" head=${["reason", "steps"]} nothing="None yet." rows=${reasons} />
    ${latest && html`<p class="notice">Most recently: ${latest.undrafted}.</p>`}
    <${Table} caption="What the gate decided" head=${["decision", "answers"]} nothing="Nothing yet." rows=${gate} />
    <${Table} caption="The last requests" nothing="None yet."
      head=${["ended", "endpoint", "status", "end", "prompt", "cached", "answer", "tokens/pass", "drafts accepted", "first token", "total"]}
      rows=${requests.map(requestRow)} />
  </section>`;
}
