/** LaTeX in Markdown: $x$, $$x$$, \(x\) and \[x\]. KaTeX is fetched when the first formula is seen. */

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const rendered = ({ tex, isDisplay }) => `<span class="math${isDisplay ? " display" : ""}">${escaped(tex)}</span>`;

const BLOCK = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]) *(?:\n|$)/;
// As in Pandoc: "$5 and $10" is money. A backtick begins code.
const INLINE = /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\]|\$(?![\s$])((?:\\[^`]|[^\\$`\n])*?[^\s\\$`]|\\[^`])\$(?!\d)|\\\(([\s\S]+?)\\\))/;

const startOf = (pattern) => (text) => {
  const at = text.search(pattern);
  return at < 0 ? undefined : at;
};

/** Extensions of marked. */
export const MATH = [
  {
    name: "mathBlock",
    level: "block",
    start: startOf(/\$\$|\\\[/),
    tokenizer(text) {
      const found = BLOCK.exec(text);
      return found && { type: "mathBlock", raw: found[0], tex: found[1] ?? found[2], isDisplay: true };
    },
    renderer: (token) => `<p>${rendered(token)}</p>`,
  },
  {
    name: "math",
    level: "inline",
    start: startOf(/\$|\\[[(]/),
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
