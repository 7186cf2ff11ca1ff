/** Read Markdown within a bound of work: what would take long is left as it is written. */

import { Lexer, Tokenizer } from "../vendor/marked.js";
import { firstOpen } from "./math.js";

/** The most work for a stretch of one block: its characters times those of them that may begin or end something. */
const MOST_WORK = 2_000_000;
/** Quotes, lists and spans within each other. */
const DEEPEST = 30;
/** Whether a paragraph is a heading with a line below it is looked for as far, from each of its beginnings. */
const LONGEST_HEADING = 2000;
const SPECIAL = /[*_~`[\]<>$\\!&(@|^:]/g;

const asWritten = (text) => ({ type: "text", raw: text, text, isAsWritten: true });

/** Return whether a stretch of text would take long to read. */
const isLong = (text) => text.length * (text.match(SPECIAL)?.length ?? 0) > MOST_WORK;

class BoundedTokenizer extends Tokenizer {
  lheading(text) {
    return super.lheading(text.slice(0, LONGEST_HEADING));
  }
}

/** As marked's lexer. What is left as it was written is a token of text with isAsWritten. */
class BoundedLexer extends Lexer {
  depth = 0;

  blockTokens(text, tokens = [], isClipped = false) {
    return this.#within(text, tokens, () => super.blockTokens(text, tokens, isClipped));
  }

  inlineTokens(text, tokens = []) {
    return this.#within(text, tokens, () => super.inlineTokens(text, tokens), isLong(text));
  }

  #within(text, tokens, read, isBeyond = false) {
    if (isBeyond || this.depth >= DEEPEST) {
      tokens.push(asWritten(text));
      return tokens;
    }
    this.depth += 1;
    try {
      return read();
    } finally {
      this.depth -= 1;
    }
  }
}

/** Return the tokens of a text, as marked's lexer. links: of references in the text before it, and those added. */
export function lexed(marked, text, links = Object.create(null)) {
  const lexer = new BoundedLexer({ ...marked.defaults, tokenizer: new BoundedTokenizer() });
  lexer.tokens.links = links;
  try {
    return lexer.lex(text);
  } catch (fault) {
    // What nests in a way that is not counted here; anything else is a fault of the page.
    if (!(fault instanceof RangeError)) throw fault;
    return [asWritten(text)];
  }
}

/** Return {text, tokens, links} of a text that may grow. before: what this returned for its beginning, or null.
 *
 * The blocks of the beginning are taken over as they are, but for the last, and those since a formula that may go on.
 */
export function lexedFurther(marked, given, before) {
  const text = given.replace(/\r\n?/g, "\n");
  const isFurther = before && text.startsWith(before.text);
  const last = isFurther ? before.tokens.findLastIndex(({ type }) => type !== "space") : -1;
  const finished = last < 0 ? [] : before.tokens.slice(0, firstOpen(before.tokens, last));
  const start = finished.reduce((sum, { raw }) => sum + raw.length, 0);
  const links = Object.assign(Object.create(null), isFurther && before.links);
  return { text, tokens: [...finished, ...lexed(marked, text.slice(start), links)], links };
}
