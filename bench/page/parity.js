// Whether drafting changed any token.
import { distinct, grouped, isNumber } from "./dom.js";
import { section } from "./documents.js";
import { figure } from "./figure.js";
import { counted, number, whole } from "./format.js";
import { matrix } from "./matrix.js";
import { caseOf, decodeRows } from "./speedup.js";

const judged = (doc) => decodeRows(doc).filter((row) => row.parity);

/** The section, or null if no document has compared tokens. */
export function paritySection(documents) {
  const having = documents.filter((doc) => judged(doc).length);
  return having.length ? section("parity", "Parity", having, build) : null;
}

function build(doc) {
  const rows = judged(doc);
  const together = rows.filter((row) => !isNumber(row.turn));
  const drawn = together.length ? together : rows;
  const nameOf = (row) => [row.workload, caseOf(row, rows)].filter(Boolean).join(", ");
  const cells = grouped(drawn, (row) => JSON.stringify([nameOf(row), row.series]));
  return {
    lead: lead(drawn),
    parts: [figure({
      title: "Drafted answers compared with plain ones",
      note: "Every drafted run is compared with every plain run, token by token.",
      draw: () => matrix({
        corner: "",
        columns: distinct(drawn.map((row) => row.series)),
        rows: distinct(drawn.map(nameOf)),
        cell: (name, series) => {
          const of = cells.get(JSON.stringify([name, series]));
          return of ? cellOf(name, series, of) : null;
        },
      }),
    })],
  };
}

function lead(rows) {
  const failed = rows.filter((row) => row.parity !== "PASS");
  if (!failed.length) return `All ${counted(rows.length, "comparison")} with plain decoding found equal tokens: drafting changed no answer.`;
  return `${failed.length} of ${rows.length} comparisons found a token that differs; each tooltip has its position, and the margin between the two best tokens there.`;
}

function cellOf(name, series, rows) {
  const failed = rows.find((row) => row.parity !== "PASS");
  if (!failed) return { kind: "good", text: "✓ same", tip: [`${name}, ${series}`, isNumber(rows[0].parity_pairs) ? `same tokens in all ${whole(rows[0].parity_pairs)} pairs of a drafted and a plain run` : "every drafted run has the tokens of every plain run"] };
  const { token, margin } = failed.first_divergence ?? {};
  const at = isNumber(token) ? `token ${whole(token)}` : "differs";
  return {
    kind: "bad",
    text: `✗ ${at}`,
    tip: [`${name}, ${series}`, isNumber(token) ? `first differs at token ${whole(token)}` : "differs", ...(isNumber(failed.parity_pairs) ? [`in ${whole(failed.parity_differing)} of ${whole(failed.parity_pairs)} pairs of runs`] : []), ...(isNumber(margin) ? [`margin between the two tokens: ${number(margin)}`] : [])],
  };
}
