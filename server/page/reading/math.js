/** LaTeX in Markdown: $x$, $$x$$, \(x\) and \[x\]. KaTeX is fetched when the first formula is seen. */

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const rendered = ({ tex, isDisplay }) => `<span class="math${isDisplay ? " display" : ""}">${escaped(tex)}</span>`;

/** A longer formula is none: what never ends is not searched to the end of the text. */
const LONGEST = 4000;
const SIGNS = { "$$": "$$", "\\[": "\\]" };
const BEGINS_LINE = /^(?:\$\$|\\\[)/gm;
const AFTER_BLOCK = /^ *(?:\n|$)/;
// As in Pandoc: "$5 and $10" is money. A backtick begins code.
const INLINE = /^(?:\$\$([^$]{1,4000}?)\$\$|\\\[([\s\S]{1,4000}?)\\\]|\$(?![\s$])((?:\\[^`]|[^\\$`\n])*?[^\s\\$`]|\\[^`])\$(?!\d)|\\\(([\s\S]{1,4000}?)\\\))/;

/** Return the token of the formula that begins there, on lines of its own; null if none does. */
function blockAt(text, at) {
  const from = text.slice(at, at + LONGEST);
  const sign = SIGNS[from.slice(0, 2)];
  const end = sign ? from.indexOf(sign, 3) : -1;
  const after = end < 0 ? null : AFTER_BLOCK.exec(text.slice(at + end + 2));
  return after && { type: "mathBlock", raw: from.slice(0, end + 2) + after[0], tex: from.slice(2, end), isDisplay: true };
}

/** Return the index of the first block, up to the last one, that a formula may begin which is not over. */
export function firstOpen(tokens, last) {
  let length = 0;
  let first = last;
  for (let at = last; at >= 0 && length < LONGEST; at -= 1) {
    length += tokens[at].raw.length;
    if (tokens[at].type === "paragraph" && tokens[at].raw.search(BEGINS_LINE) >= 0) first = at;
  }
  return first;
}

/** Extensions of marked. */
export const MATH = [
  {
    name: "mathBlock",
    level: "block",
    start(text) {
      for (const { index } of text.matchAll(BEGINS_LINE)) if (blockAt(text, index)) return index;
      return undefined;
    },
    tokenizer: (text) => blockAt(text, 0),
    renderer: (token) => `<p>${rendered(token)}</p>`,
  },
  {
    name: "math",
    level: "inline",
    start(text) {
      const at = text.search(/\$|\\[[(]/);
      return at < 0 ? undefined : at;
    },
    tokenizer(text) {
      const found = INLINE.exec(text);
      const [raw, ...groups] = found ?? [];
      return found && { type: "math", raw, tex: groups.find((one) => one !== undefined), isDisplay: found[1] !== undefined || found[2] !== undefined };
    },
    renderer: rendered,
  },
];

let loaded = null;

/** Fetch KaTeX and its style once. */
function load() {
  loaded ??= import("../vendor/katex/katex.js").then(() => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "ui/vendor/katex/katex.css" });
    document.head.append(style);
    return globalThis.katex;
  });
  return loaded;
}

// Formulas are not trusted: no links, no styles of their own, and bounds on what they can grow to.
const OPTIONS = { output: "html", throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 300 };

/** Draw the formulas in an element. One that is no LaTeX stays as it was written. */
export async function drawMath(box) {
  const found = [...box.querySelectorAll(".math:not([role])")];
  if (!found.length) return;
  const katex = await load();
  for (const one of found) {
    const tex = one.textContent;
    try {
      katex.render(tex, one, { ...OPTIONS, displayMode: one.classList.contains("display") });
      one.setAttribute("aria-label", tex);
      one.setAttribute("role", "img");
    } catch {
      one.textContent = tex;
    }
  }
}
