// What a document says about itself, and the frame of a section.
import { choice, distinct, grouped, h, isNumber } from "./dom.js";
import { anything, bytes, day, words } from "./format.js";

/** "AMD EPYC 9V74, 2 cores": what tells one document from others in a choice. */
function shortName(own, all) {
  const parts = [
    [own.machine?.cpu ?? "a machine not named", (one) => one.machine?.cpu],
    [own.model?.name, (one) => one.model?.name],
    [day(own.date), (one) => day(one.date)],
    [commandOf(own), commandOf],
  ];
  const telling = parts.filter(([text, of]) => text && distinct(all.map(of)).length > 1).map(([text]) => text);
  return telling.length ? telling.join(", ") : `document ${all.indexOf(own) + 1}`;
}

/** "decode" of "reprise bench decode --json ...". */
function commandOf(own) {
  return String(own.command ?? "").split(" ").slice(2, 3).join("") || null;
}

/** A name for each document, by the document; no two are alike. */
export function namesOf(documents) {
  const names = documents.map((own) => shortName(own, documents));
  return new Map(documents.map((own, at) => {
    const isFirst = names.indexOf(names[at]) === at;
    return [own, isFirst ? names[at] : `${names[at]} (${at + 1})`];
  }));
}

/** When and on what it was measured, and with which model: a sentence. The rest is said at the end of the page. */
export function measured(own) {
  const machine = own.machine ?? {};
  const cores = isNumber(machine.cores) ? `, ${machine.cores} cores` : "";
  const model = own.model?.name ? `; model ${own.model.name}` : "";
  return `Measured on ${day(own.date)} on ${machine.cpu ?? "a machine not named"}${cores}${model}.`;
}

/**
 * A section of the page. documents: those with its data; where there are several, one is chosen. build(document)
 * gives {lead, parts}: a sentence that says what one sees, and the elements below it.
 */
export function section(id, title, documents, build) {
  const body = h("div");
  const draw = (own) => {
    const { lead, parts } = build(own);
    body.replaceChildren(
      h("p", { class: "lead" }, lead),
      h("p", { class: "measured" }, measured(own)),
      ...parts.filter(Boolean));
  };
  draw(documents[0]);
  const names = namesOf(documents);
  return h("section", { id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title),
    documents.length > 1 && choice("Measured", documents.map((own) => [own, names.get(own)]), documents[0], draw),
    body);
}

/** Where the figures come from: the commands, and under them the machine and the model that they share. */
export function sources(documents) {
  const places = grouped(documents, (own) => JSON.stringify([own.reprise, { ...own.machine, load_at_start: null }, own.model]));
  return h("section", { id: "sources", "aria-labelledby": "sources-title" },
    h("h2", { id: "sources-title" }, "Where this comes from"),
    h("p", { class: "lead" }, "Each command below, on the machine under it, gives its figures again."),
    [...places.values()].map((of) => h("dl", { class: "source" },
      of.map((own) => pair(ran(own), h("code", {}, own.command ?? "a command not noted"))),
      pair("reprise", of[0].reprise),
      Object.entries(of[0].machine ?? {}).filter(([name]) => !["reprise", "load_at_start"].includes(name)).map(([name, value]) =>
        pair(words(name), name.endsWith("_bytes") ? bytes(value) : plain(value))),
      Object.entries(of[0].model ?? {}).map(([name, value]) =>
        pair(`model ${words(name)}`, name.endsWith("_bytes") ? bytes(value) : anything(value))))));
}

// The day of a run, and how busy the machine was when it began.
function ran(own) {
  const load = own.machine?.load_at_start;
  return isNumber(load) ? `${day(own.date)}, at a load of ${load}` : day(own.date);
}

function plain(value) {
  return typeof value === "number" ? String(value) : anything(value);
}

function pair(name, value) {
  if (value === null || value === undefined) return null;
  return [h("dt", {}, name), h("dd", {}, value)];
}
