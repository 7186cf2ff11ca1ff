// The color and shape of each name, the same everywhere on the page.
import { svg } from "./dom.js";

const KNOWN = ["auto", "suffix", "ngram-simple", "ngram-mod", "draft-model"];
const NUM_SLOTS = 8;
const slots = new Map(KNOWN.map((name, at) => [name, at]));
const isModel = (name) => name === "model" || name === "plain" || name === "none";

/** The slot of a name, 0 to 7, or "model" for tokens of the model itself: a class .slot-N has its colour. */
export function slotOf(name) {
  if (isModel(name)) return "model";
  if (!slots.has(name)) assignSlots([name]);
  return slots.get(name);
}

/** Give different slots to names that are shown together, as long as there are slots; assigned names keep theirs. */
export function assignSlots(names) {
  const taken = names.filter((name) => slots.has(name)).map((name) => slots.get(name));
  // Next to draft types, other names should not look like a draft type, shown or not.
  const all = [...Array(NUM_SLOTS).keys()];
  const order = names.some((name) => KNOWN.includes(name)) ? [...all.slice(KNOWN.length), ...all.slice(0, KNOWN.length)] : all;
  for (const name of names) {
    if (slots.has(name) || isModel(name)) continue;
    const free = order.find((slot) => !taken.includes(slot)) ?? taken.length % NUM_SLOTS;
    slots.set(name, free);
    taken.push(free);
  }
}

const POLYGONS = {
  1: "-4.6,-4.6 4.6,-4.6 4.6,4.6 -4.6,4.6",
  2: "0,-5.8 5.4,4.2 -5.4,4.2",
  3: "0,-6.2 6.2,0 0,6.2 -6.2,0",
  4: "0,5.8 5.4,-4.2 -5.4,-4.2",
  5: "-2,-5.6 2,-5.6 2,-2 5.6,-2 5.6,2 2,2 2,5.6 -2,5.6 -2,2 -5.6,2 -5.6,-2 -2,-2",
  6: "0,-6 5.7,-1.8 3.5,4.9 -3.5,4.9 -5.7,-1.8",
  7: "-5.4,-3 0,-6 5.4,-3 5.4,3 0,6 -5.4,3",
};

/** The mark of a slot at a position. size: 1 is about ten pixels across. */
export function shape(slot, x, y, size = 1) {
  const at = { class: `shape slot-${slot}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})` };
  return POLYGONS[slot]
    ? svg("polygon", { points: POLYGONS[slot], ...at })
    : svg("circle", { r: 5, ...at });
}

/** The mark of a slot as a separate picture, for legends. */
export function swatch(slot) {
  return svg("svg", { class: "swatch", viewBox: "-8 -8 16 16", width: 14, height: 14, "aria-hidden": "true" }, shape(slot, 0, 0));
}
