// Answers as text, with each token colored by its source.
import { choice, distinct, grouped, h, list, svg } from "./dom.js";
import { section } from "./documents.js";
import { counted, share, whole } from "./format.js";
import { slotOf, swatch } from "./series.js";
import { rove, tip } from "./tooltip.js";

function samplesOf(doc) {
  return list(doc.decode?.samples).filter((sample) => list(sample?.tokens).length);
}

/** The section, or null if no document has samples. */
export function answersSection(documents) {
  const having = documents.filter((doc) => samplesOf(doc).length);
  return having.length ? section("answers", "The source of each token", having, build) : null;
}

function build(doc) {
  const samples = samplesOf(doc);
  const workloads = distinct(samples.map((sample) => String(sample.workload)));
  const view = h("div", { class: "answer" });
  const types = h("div");
  const showType = (sample) => view.replaceChildren(...drawn(sample));
  const showWorkload = (workload) => {
    const of = samples.filter((sample) => String(sample.workload) === workload);
    types.replaceChildren(...(distinct(samples.map((sample) => sample.draft_type)).length > 1 || of.length > 1
      ? [choice("Drafts", of.map((sample) => [sample, String(sample.draft_type)]), of[0], showType)] : []));
    showType(of[0]);
  };
  const first = String(mostDrafted(samples).workload);
  showWorkload(first);
  return {
    lead: lead(samples),
    parts: [h("div", { class: "controls" }, workloads.length > 1 && choice("Workload", workloads.map((name) => [name, name]), first, showWorkload), types), view],
  };
}

function lead(samples) {
  const most = mostDrafted(samples);
  return `One answer per workload. Plain text was decoded by the model alone; tinted text was drafted and accepted. `
    + `The largest drafted share is in ${most.workload}: ${share(draftedShare(most.tokens))} of ${whole(most.tokens.length)} tokens.`;
}

function mostDrafted(samples) {
  return samples.toSorted((a, b) => draftedShare(b.tokens) - draftedShare(a.tokens))[0];
}

function draftedShare(tokens) {
  return tokens.filter(([, source]) => source !== "model").length / tokens.length;
}

function drawn(sample) {
  const tokens = sample.tokens.map(([text, source]) => ({ text: String(text), source: String(source ?? "model") }));
  const counts = [...grouped(tokens, (token) => token.source)].map(([source, of]) => [source, of.length]);
  const text = h("div", { class: "tokens", role: "group", "aria-label": `Answer to ${sample.workload}, ${counted(tokens.length, "token")}` });
  let run = 0;
  text.append(...tokens.map((token, at) => {
    run = at && tokens[at - 1].source === token.source ? run + 1 : 1;
    return tokenElement(token, at, tokens.length, run);
  }));
  const strip = stripOf(tokens);
  return [
    legend(counts, tokens.length, [text, strip]),
    strip,
    rove(text),
    sample.prompt && h("details", { class: "prompt" }, h("summary", {}, "Prompt"), h("pre", {}, String(sample.prompt))),
  ].filter(Boolean);
}

function tokenElement({ text, source }, at, count, run) {
  const from = source === "model" ? "from the model itself" : `drafted by ${source}, the ${ordinal(run)} in a row`;
  const element = h("span", { class: `token slot-${slotOf(source)}`, "data-source": source }, text);
  return tip(element, [JSON.stringify(text), `token ${whole(at + 1)} of ${whole(count)}`, from]);
}

function ordinal(count) {
  const ending = ["th", "st", "nd", "rd"][count % 100 > 10 && count % 100 < 14 ? 0 : count % 10] ?? "th";
  return `${count}${ending}`;
}

// The whole answer as a bar, colored by source.
function stripOf(tokens) {
  const strip = svg("svg", { class: "strip", viewBox: `0 0 ${tokens.length} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
  let from = 0;
  tokens.forEach((token, at) => {
    if (tokens[at + 1]?.source === token.source) return;
    strip.append(svg("rect", { class: `slot-${slotOf(token.source)}`, "data-source": token.source, x: from, y: 0, width: at + 1 - from, height: 10 }));
    from = at + 1;
  });
  return strip;
}

function legend(counts, total, texts) {
  let chosen = null;
  const buttons = counts.toSorted((a, b) => b[1] - a[1]).map(([source, count]) => h("button", {
    type: "button",
    "aria-pressed": "false",
    onclick: (event) => {
      chosen = chosen === source ? null : source;
      for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget && chosen !== null));
      for (const text of texts) {
        for (const token of text.children) token.classList.toggle("dim", chosen !== null && token.dataset.source !== chosen);
      }
    },
  }, swatch(slotOf(source)), `${source} ${share(count / total)}`));
  return h("div", { class: "legend filter", role: "group", "aria-label": "Sources; press one to highlight it" }, buttons);
}
