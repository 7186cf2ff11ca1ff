// The page: its sections, the table of contents, and the switch between light and dark.
import { acceptanceSection } from "./acceptance.js";
import { answersSection } from "./answers.js";
import { costsSection } from "./costs.js";
import { choice, distinct, h } from "./dom.js";
import { measured, sources } from "./documents.js";
import { economicsSection } from "./economics.js";
import { paritySection } from "./parity.js";
import { peersSection } from "./peers.js";
import { replaySection } from "./replay.js";
import { headline, speedupSection } from "./speedup.js";
import { sweepSection } from "./sweep.js";
import { listenForTips } from "./tooltip.js";
import { translationSection } from "./translation.js";

const SHORT = { answers: "Tokens", costs: "Costs", sweep: "Settings", economics: "Economics", translation: "Translation", peers: "Peers", replay: "Replay", sources: "Sources" };
const documents = JSON.parse(document.getElementById("documents").textContent);
const report = document.getElementById("report");

listenForTips();
const sections = [
  speedupSection, paritySection, answersSection, acceptanceSection, costsSection, sweepSection, economicsSection,
  translationSection, peersSection, replaySection, sources,
].map((make) => make(documents)).filter(Boolean);

const models = distinct(documents.map((doc) => doc.model?.name).filter(Boolean));
report.replaceChildren(
  h("div", { class: "opening" },
    h("h1", {}, "Speedup from drafting"),
    h("p", { class: "lead" }, "Reprise drafts text that it has already seen; the model verifies each draft in one forward pass. "
      + `These are the results${models.length ? ` for ${models.join(" and ")}` : ""}, compared with plain decoding of the same prompts.`),
    documents.length === 1 && h("p", { class: "measured" }, measured(documents[0])),
    headline(documents)),
  ...sections);

document.getElementById("contents").append(...sections.map((section) =>
  h("a", { href: `#${section.id}` }, SHORT[section.id] ?? section.querySelector("h2").textContent)));

document.getElementById("theme").append(choice("Colours", [["auto", "auto"], ["light", "light"], ["dark", "dark"]], "auto", (theme) => {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}));

// Paper is narrower than the window, and collapsed tables cannot be opened on it.
window.addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details.table")) fold.open = true;
});
