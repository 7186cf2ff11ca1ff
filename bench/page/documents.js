// Descriptions of documents, and the frame of a section.
import { choice, distinct, grouped, h, isNumber } from "./dom.js";
import { anything, bytes, day, words } from "./format.js";

/** "AMD EPYC 9V74, 2 cores": the properties that distinguish a document from the others. */
function shortName(doc, all) {
  const parts = [
    [doc.machine?.cpu ?? "unknown machine", (one) => one.machine?.cpu],
    [doc.model?.name, (one) => one.model?.name],
    [day(doc.date), (one) => day(one.date)],
    [commandOf(doc), commandOf],
  ];
  const telling = parts.filter(([text, of]) => text && distinct(all.map(of)).length > 1).map(([text]) => text);
  return telling.length ? telling.join(", ") : `document ${all.indexOf(doc) + 1}`;
}

/** "decode" of "reprise bench decode --json ...". */
function commandOf(doc) {
  return String(doc.command ?? "").split(" ").slice(2, 3).join("") || null;
}

/** A distinct name for each document, as a Map. */
export function namesOf(documents) {
  const names = documents.map((doc) => shortName(doc, documents));
  return new Map(documents.map((doc, at) => {
    const isFirst = names.indexOf(names[at]) === at;
    return [doc, isFirst ? names[at] : `${names[at]} (${at + 1})`];
  }));
}

/** A sentence on when, where and with which model it was measured; the end of the page has the details. */
export function measured(doc) {
  const machine = doc.machine ?? {};
  const cores = isNumber(machine.cores) ? `, ${machine.cores} cores` : "";
  const model = doc.model?.name ? `; model ${doc.model.name}` : "";
  return `Measured on ${day(doc.date)} on ${machine.cpu ?? "an unknown machine"}${cores}${model}.`;
}

/**
 * A section of the page. documents: those with its data; if there are several, the reader chooses one.
 * build(document) returns {lead, parts}: a sentence that sums up the section, and the elements below it.
 */
export function section(id, title, documents, build) {
  const body = h("div");
  const draw = (doc) => {
    const { lead, parts } = build(doc);
    body.replaceChildren(
      h("p", { class: "lead" }, lead),
      h("p", { class: "measured" }, measured(doc)),
      ...parts.filter(Boolean));
  };
  draw(documents[0]);
  const names = namesOf(documents);
  return h("section", { id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title),
    documents.length > 1 && choice("Measured", documents.map((doc) => [doc, names.get(doc)]), documents[0], draw),
    body);
}

/** The sources of the figures: the commands, with the machine and model that they ran on. */
export function sources(documents) {
  const places = grouped(documents, (doc) => JSON.stringify([doc.reprise, { ...doc.machine, load_at_start: null }, doc.model]));
  return h("section", { id: "sources", "aria-labelledby": "sources-title" },
    h("h2", { id: "sources-title" }, "Sources"),
    h("p", { class: "lead" }, "To reproduce the figures, run these commands on the machines listed with them."),
    [...places.values()].map((of) => h("dl", { class: "source" },
      of.map((doc) => pair(ran(doc), h("code", {}, doc.command ?? "unknown command"))),
      pair("reprise", of[0].reprise),
      Object.entries(of[0].machine ?? {}).filter(([name]) => !["reprise", "load_at_start"].includes(name)).map(([name, value]) =>
        pair(words(name), name.endsWith("_bytes") ? bytes(value) : plain(value))),
      Object.entries(of[0].model ?? {}).map(([name, value]) =>
        pair(`model ${words(name)}`, name.endsWith("_bytes") ? bytes(value) : anything(value))))));
}

// The day of a run, and the machine's load when it began.
function ran(doc) {
  const load = doc.machine?.load_at_start;
  return isNumber(load) ? `${day(doc.date)}, at a load of ${load}` : day(doc.date);
}

function plain(value) {
  return typeof value === "number" ? String(value) : anything(value);
}

function pair(name, value) {
  if (value === null || value === undefined) return null;
  return [h("dt", {}, name), h("dd", {}, value)];
}
