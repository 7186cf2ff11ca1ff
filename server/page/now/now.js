/** What the server does now, from its metrics and its list of requests. Counts and times only: it has no texts. */

import { html, useEffect } from "../vendor/preact.js";
import { undrafted } from "../runs/answer.js";
import { SOURCES } from "../reading/origins.js";
import { getJson, getText } from "../shared/api.js";
import { Observed, useObserved } from "../shared/observed.js";
import { bytes, percent, seconds } from "../shared/words.js";
import { Chart, SPAN_S } from "./chart.js";
import { parse, quantile, sum, sumBy } from "./metrics.js";
import { Table, number, text } from "./table.js";

const EVERY_MS = 1000;

/** {samples, requests, at, tokens, points} of the last look; points are kept while another tab is open. */
const reading = new Observed(null);

/** What the reasons of reprise_undrafted_steps_total mean. */
const REASONS = {
  unmatched: "nothing matched",
  unlikely: "drafts are seldom accepted",
  dear: "drafts would cost more than they save",
  spent: "drafts used up the time that they may cost",
  unread: "the draft model had not read the prompt yet",
  inexact: "such drafts are not exact here (--exact)",
};
const DECISIONS = {
  lookup: "drafts from earlier text",
  "draft-model": "drafts of the draft model",
  mtp: "drafts of the MTP head",
  eagle3: "drafts of the EAGLE-3 head",
  dflash: "drafts of the DFlash head",
  wedlm: "masks of the model",
  plain: "no drafts",
};

const limit = (value) => (value === null ? "–" : value === Infinity ? "more" : `≤ ${seconds(value)}`);

/** Ask for everything once. before: the reading before this one, or null. */
async function look(before) {
  const [metrics, requests] = await Promise.all([getText("metrics"), getJson("v1/requests")]);
  const samples = parse(metrics);
  const at = performance.now();
  // Every token but the first of an answer is counted with the time since the one before it, as it comes.
  const tokens = sum(samples, "reprise_inter_token_seconds_count");
  const isNext = before && at - before.at < 3 * EVERY_MS;
  const added = isNext ? [{ at, rate: (1000 * (tokens - before.tokens)) / (at - before.at) }] : [];
  const points = [...(before?.points ?? []), ...added].filter((one) => at - one.at <= 1000 * SPAN_S);
  return { samples, requests: requests.data, at, tokens, points };
}

const REQUESTS = [
  text("ended"), text("endpoint"), number("status"), text("how"), number("prompt"), number("from cache"), number("answer"),
  number("tokens a pass"), text("drafts accepted"), number("first token"), number("total"),
];

function requestRow(one) {
  const drafts = Object.entries(one.drafts).map(([source, [drafted, accepted]]) => `${source} ${accepted}/${drafted}`);
  return [
    new Date(one.time).toLocaleTimeString([], { hour12: false }), one.model ? `${one.endpoint} (${one.model})` : one.endpoint,
    one.status, one.error ?? one.finish_reason ?? "", one.num_prompt_tokens, one.num_cached_tokens ?? "", one.num_completion_tokens,
    one.num_forwards ? (one.num_completion_tokens / one.num_forwards).toFixed(2) : "",
    [...drafts, undrafted(drafts.length, one.undrafted)].filter(Boolean).join(", "),
    one.first_token_ms === null ? "" : seconds(one.first_token_ms / 1000), seconds(one.total_ms / 1000),
  ];
}

function useReading(onFault) {
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const next = async () => {
      try {
        reading.set(await look(reading.value));
      } catch (fault) {
        if (!isOver) onFault(fault);
      }
      if (!isOver) timer = setTimeout(next, EVERY_MS);
    };
    next();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  return useObserved(reading);
}

function Tiles({ samples, points }) {
  const all = (name) => sum(samples, `reprise_${name}`);
  const time = (name, share) => limit(quantile(samples, `reprise_${name}_seconds`, share));
  const tile = (label, value, more) => html`<div class="tile"><dt>${label}</dt><dd>${value}</dd>${more && html`<dd class="more">${more}</dd>`}</div>`;
  const hits = all("prefix_cache_hits_total");
  const [numRead, numToRead] = [all("read_ahead_tokens_total"), all("read_ahead_left_tokens")];
  const entries = all("ngram_table_occupied_entries");
  return html`<dl class="tiles">
    ${tile("Answers being written", all("rows"), `${all("waiting")} waiting`)}
    ${tile("Tokens a second", points.length ? points.at(-1).rate.toFixed(0) : "–", "now")}
    ${tile("Time to the first token", time("time_to_first_token", 0.5), `95 of 100: ${time("time_to_first_token", 0.95)}`)}
    ${tile("Time between tokens", time("inter_token", 0.5), `95 of 100: ${time("inter_token", 0.95)}`)}
    ${tile("Memory", bytes(all("mlx_active_bytes")) || "0 MiB", `at most ${bytes(all("mlx_peak_bytes")) || "0 MiB"}`)}
    ${tile("Kept prompts", bytes(all("prefix_cache_bytes")) || "0 MiB", `${percent(hits, hits + all("prefix_cache_misses_total"))} of prompts began with one`)}
    ${tile("Read ahead", `${numRead} tokens`, numToRead ? `reading: ${numToRead} left` : `${percent(all("read_ahead_used_tokens_total"), numRead)} used`)}
    ${tile("N-gram table", percent(entries, all("ngram_table_entries")), `full: ${entries} entries`)}
    ${tile("Tokens a forward pass", all("forwards_total") ? (all("completion_tokens_total") / all("forwards_total")).toFixed(2) : "–", "of finished answers")}
  </dl>`;
}

export function Now({ onFault }) {
  const now = useReading(onFault);
  if (!now) return html`<p role="status">Looking …</p>`;
  const { samples, requests, points } = now;
  const accepted = new Map(sumBy(samples, "reprise_accepted_tokens_total", "source"));
  const drafted = sumBy(samples, "reprise_drafted_tokens_total", "source");
  const reasons = sumBy(samples, "reprise_undrafted_steps_total", "reason").sort(([, a], [, b]) => b - a);
  const latest = requests.find((one) => one.undrafted);
  const gate = sumBy(samples, "reprise_gate_decisions_total", "decision").filter(([, count]) => count);
  return html`<section class="now">
    <h2 class="hidden">Now</h2>
    <${Tiles} samples=${samples} points=${points} />
    <${Chart} points=${points} />
    ${latest && html`<p class="why"><strong>Why was nothing drafted?</strong> ${latest.undrafted}. <span class="soft">The latest answer with next to no drafts.</span></p>`}
    <div class="pair">
      <${Table} caption="Drafts since the server started" columns=${[text("source"), number("tokens drafted"), number("accepted"), number("share")]} nothing="None yet."
        rows=${drafted.map(([source, count]) => [SOURCES[source] ? `${SOURCES[source]} (${source})` : source, count, accepted.get(source) ?? 0, percent(accepted.get(source) ?? 0, count)])} />
      <${Table} caption="Steps without a draft since the server started, by reason" columns=${[text("reason"), number("steps")]} nothing="None yet."
        rows=${reasons.map(([reason, count]) => [REASONS[reason] ? `${REASONS[reason]} (${reason})` : reason, count])} />
    </div>
    <${Table} caption="Answers by what was decided about drafts" columns=${[text("decision"), number("answers")]} nothing="Nothing yet."
      rows=${gate.map(([decision, count]) => [DECISIONS[decision] ? `${DECISIONS[decision]} (${decision})` : decision, count])} />
    <${Table} caption="The last requests" nothing="None yet." columns=${REQUESTS} rows=${requests.map(requestRow)} />
  </section>`;
}
