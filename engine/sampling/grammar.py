"""Answers that keep to a grammar: which tokens may come next, and which must. By llguidance.

A matcher stands where the committed answer stands. For a draft it walks ahead and back again, so that every
drafted position has its own mask; rejected drafts leave no trace.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from engine.model.tokenizer import Tokenizer
from engine.request import Grammar, GrammarError

MAX_COMPILED = 64
"""Compiled grammars that are kept, the least recently used goes first."""

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is spaced: as most models write it. Free spacing would let a weak one write blanks for ever."""

LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_grammar_size=100_000, max_items_in_row=20_000)
"""What a grammar may take to compile, and how many ways to go on there may be: an optional property of an
object is four. The rest are llguidance's own limits."""

Mask = NDArray[np.bool_]
"""(vocabulary,) True where a token is allowed."""


class Grammars:
    """Compiles grammars for one vocabulary and keeps them. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def check(self, grammar: Grammar) -> None:
        """Compile it, for its first use soon. Raises GrammarError."""
        self._get(grammar)

    def matcher(self, grammar: Grammar) -> "Matcher":
        """A matcher for an answer that has not begun. Raises GrammarError."""
        return Matcher(self._get(grammar).deep_copy(), self._tokenizer.vocab_size, self._tokenizer.eos_ids)

    def _get(self, grammar: Grammar) -> LLMatcher:
        with self._lock:
            found = self._compiled.get(grammar)
        if found is None:
            # Not under the lock: what takes long must not keep others from what is there.
            found = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = found
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer.vocabulary, _to_llguidance(grammar), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(matcher.get_error().strip())
        if warnings := matcher.get_grammar_warnings():
            raise GrammarError("; ".join(warnings))
        if fault := _try_start(matcher.deep_copy()):
            raise GrammarError(f"no answer can begin: {fault.strip()}")
        return matcher


def _try_start(matcher: LLMatcher) -> str:
    """Begin an answer; returns what went wrong, often nothing.

    Some that compile cannot begin: those without an end, or with too much to compute for the first token.
    """
    allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").nonzero()[
        0
    ]
    forced = matcher.compute_ff_tokens()
    if not matcher.is_error() and not matcher.is_stopped() and allowed.size:
        matcher.consume_token(forced[0] if forced else int(allowed[-1]))
        matcher.compute_bitmask()
    return matcher.get_error()


def _to_llguidance(grammar: Grammar) -> str:
    """The grammar in llguidance's own form."""
    try:
        match grammar.kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(grammar.text, defaults=JSON_STYLE)  # type: ignore[arg-type]
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.text)
            case "lark":
                return LLMatcher.grammar_from_lark(grammar.text)
    except ValueError as fault:
        raise GrammarError(str(fault)) from fault


class Matcher:
    """Where one answer stands in its grammar.

    The token that ends an answer is never fed to llguidance, whose rollback does not count it.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids

    def commit(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these tokens. Raises GrammarError if they do not keep to the grammar."""
        if not self._matcher.consume_tokens([token for token in tokens if token not in self._eos_ids]):
            raise GrammarError(f"the answer left its grammar: {self._matcher.get_error().strip()}")

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next, often none."""
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """How many leading tokens keep to the grammar. The token that ends an answer is not among them."""
        before_end = list(takewhile(lambda token: token not in self._eos_ids, tokens))
        return self._matcher.validate_tokens(before_end) if before_end else 0

    def masks(self, drafted: Sequence[int] = ()) -> list[Mask]:
        """The masks of the next token and of the one after each drafted token.

        drafted: tokens that keep to the grammar, as counted by count_allowed.
        Raises GrammarError if the grammar has come to a fault of its own, such as growing beyond its limits.
        """
        masks = [self._mask()]
        num_walked = 0
        for token in drafted:
            self._matcher.consume_token(token)
            num_walked += 1
            masks.append(self._mask())
        self._matcher.rollback(num_walked)
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {self._matcher.get_error().strip()}")
        return masks

    def _mask(self) -> Mask:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
