// Acceptance by position in the draft, and gains over the turns of a chat.
import { choice, distinct, grouped, isNumber, list } from "./dom.js";
import { section } from "./documents.js";
import { figure, panels } from "./figure.js";
import { fixed2, MEASURES, share, times, whole } from "./format.js";
import { xyPlot } from "./lines.js";
import { caseOf, decodeRows } from "./speedup.js";

/** The section, or null if no document has acceptance by position or by turn. */
export function acceptanceSection(documents) {
  const having = documents.filter((doc) => decodeRows(doc).some((row) => positions(row).length || isNumber(row.turn)));
  return having.length ? section("acceptance", "Acceptance", having, build) : null;
}

function positions(row) {
  return list(row.acceptance_by_position);
}

function build(doc) {
  const rows = decodeRows(doc);
  const together = rows.filter((row) => !isNumber(row.turn) && positions(row).some(isNumber));
  const turns = rows.filter((row) => isNumber(row.turn));
  const parts = [together.length && byPosition(together), turns.length && byTurn(turns)];
  return { lead: lead(together, turns), parts };
}

function lead(rows, turns) {
  const firsts = rows.map((row) => positions(row)[0]).filter(isNumber);
  const sentences = [];
  if (firsts.length) {
    sentences.push(`The first token of a draft was accepted in ${share(Math.min(...firsts))} to ${share(Math.max(...firsts))} `
      + "of cases, depending on the workload; the curves show later positions.");
  }
  const gains = [...grouped(turns, (row) => JSON.stringify([row.workload, row.series])).values()].flatMap((ofSeries) => {
    const sorted = ofSeries.toSorted((a, b) => a.turn - b.turn);
    return sorted.length > 1 && isNumber(sorted[0].speedup) && isNumber(sorted.at(-1).speedup)
      ? [{ from: sorted[0].speedup, to: sorted.at(-1).speedup, row: sorted[0] }] : [];
  });
  if (gains.length) {
    const most = gains.reduce((a, b) => (b.to / b.from > a.to / a.from ? b : a));
    sentences.push(`Over the turns of a chat, the speedup of ${most.row.workload} with ${most.row.series} changed from ${times(most.from)} to ${times(most.to)}.`);
  }
  return sentences.join(" ") || "The share of drafted tokens that the model accepted.";
}

function heading(row, rows) {
  const sub = caseOf(row, rows);
  return sub ? `${row.workload}, ${sub}` : row.workload;
}

function byPosition(rows) {
  const groups = [...grouped(rows, (row) => heading(row, rows))];
  const longest = Math.max(...rows.map((row) => positions(row).length));
  return figure({
    title: "By position in the draft",
    note: "Acceptance rate at each position in the draft. Where a curve stays high, long drafts pay.",
    series: distinct(rows.map((row) => row.series)),
    draw: (width, isShown) => panels(width, groups.map(([name, of]) => [name, (panelWidth) => xyPlot(panelWidth, {
      height: 190,
      label: `${name}: acceptance by position`,
      x: { name: "position in the draft", format: whole, domain: [1, Math.max(2, longest)], ticks: integers(longest) },
      y: { name: "accepted", format: share, domain: [0, 1] },
      series: of.filter((row) => isShown(row.series)).map((row) => ({
        name: row.series,
        points: positions(row).map((y, at) => ({
          x: at + 1, y, tip: [`${name}, ${row.series}`, `position ${at + 1}: ${share(y)} accepted`, ...(isNumber(row.drafted_by_position?.[at]) ? [`of ${whole(row.drafted_by_position[at])} drafted there`] : []), `all positions: ${share(row.acceptance)}`],
        })),
      })),
    })])),
  });
}

function byTurn(rows) {
  let measure = "speedup";
  const groups = [...grouped(rows, (row) => heading(row, rows))];
  const names = ["speedup", "acceptance", "tokens_per_forward", "drafted_share"].filter((name) => rows.some((row) => isNumber(row[name])));
  if (!names.includes(measure)) measure = names[0];
  const turns = distinct(rows.map((row) => row.turn)).sort((a, b) => a - b);
  const result = figure({
    title: "By turn of the chat",
    note: "Drafters keep what they learned from turn to turn; it is cleared before the next chat.",
    series: distinct(rows.map((row) => row.series)),
    controls: names.length > 1 ? [choice("Show", names.map((name) => [name, MEASURES[name].label]), measure, (name) => {
      measure = name;
      result.redraw();
    })] : [],
    draw: (width, isShown) => {
      const { axis, format, reference, domain } = MEASURES[measure];
      const values = rows.map((row) => row[measure]).filter(isNumber);
      const [low, high] = [Math.min(...values, reference ?? Infinity), Math.max(...values, reference ?? 0)];
      const room = 0.08 * (high - low || 1);
      return panels(width, groups.map(([name, of]) => [name, (wide) => xyPlot(wide, {
        height: 190,
        label: `${name}: ${MEASURES[measure].label} by turn`,
        x: { name: "turn", format: whole, domain: [turns[0], Math.max(turns.at(-1), turns[0] + 1)], ticks: turns },
        y: { name: axis, format, domain: domain ?? [low - room, high + room] },
        rules: isNumber(reference) ? [{ y: reference, label: "plain" }] : [],
        series: [...grouped(of.filter((row) => isShown(row.series)), (row) => row.series)].map(([series, some]) => ({
          name: series,
          points: some.toSorted((a, b) => a.turn - b.turn).map((row) => ({
            x: row.turn, y: row[measure],
            tip: [`${name}, ${series}, turn ${row.turn}`, `${times(row.speedup)} speedup`, `${share(row.acceptance)} accepted`, `${fixed2(row.tokens_per_forward)} tokens per forward`],
          })),
        })),
      })]));
    },
  });
  return result;
}

function integers(to) {
  return Array.from({ length: to }, (_, at) => at + 1);
}
