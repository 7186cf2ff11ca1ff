"""Constrain answers to a grammar with llguidance: compute which tokens may come next, and which must.

A matcher stands at the end of the committed answer. For a draft, it advances through the drafted tokens to
compute the mask of every drafted position, and then rolls back, so rejected drafts leave no trace.
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
"""Maximum compiled grammars to keep; the least recently used is dropped first."""

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The whitespace of JSON, as most models write it. Were it free, a weak model could write blanks forever."""

LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_grammar_size=100_000, max_items_in_row=20_000)
"""Limits on the cost of compiling a grammar, and on the ways in which it may continue at one position: an
optional property of an object counts as four such ways. All other limits are llguidance's defaults."""

Mask = NDArray[np.bool_]
"""(vocabulary,) True where a token is allowed."""


class Grammars:
    """Compiled grammars for one vocabulary. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def check(self, grammar: Grammar) -> None:
        """Compile a grammar and keep it. Raises GrammarError if it cannot be used."""
        self._get(grammar)

    def matcher(self, grammar: Grammar) -> "Matcher":
        """Make a matcher for an empty answer. Raises GrammarError if the grammar cannot be used."""
        return Matcher(self._get(grammar).deep_copy(), self._tokenizer.vocab_size, self._tokenizer.eos_ids)

    def _get(self, grammar: Grammar) -> LLMatcher:
        with self._lock:
            found = self._compiled.get(grammar)
        if found is None:
            # Not under the lock: compiling may take long, and must not block other threads' lookups.
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
    """Try to start an answer; return the error, "" if there is none.

    Some grammars compile but cannot start: those that can never end, or whose first token takes too much
    computation.
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
    """Convert a grammar to llguidance's own format. Raises GrammarError if it is invalid."""
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
    """The position of one answer in its grammar.

    End-of-answer tokens are never fed to llguidance, because its rollback does not count them.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance by tokens of the answer. Raises GrammarError if the grammar does not allow them."""
        if not self._matcher.consume_tokens([token for token in tokens if token not in self._eos_ids]):
            raise GrammarError(f"the answer does not match its grammar: {self._matcher.get_error().strip()}")

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next; often there are none."""
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Count the leading tokens that the grammar allows, up to the first end-of-answer token."""
        before_end = list(takewhile(lambda token: token not in self._eos_ids, tokens))
        return self._matcher.validate_tokens(before_end) if before_end else 0

    def masks(self, drafted: Sequence[int] = ()) -> list[Mask]:
        """Return the mask of the next token and of the token after each drafted one: (k + 1,) masks.

        drafted: (k,) tokens that the grammar allows, as counted by count_allowed().
        Raises GrammarError if llguidance fails, for example because the grammar exceeds a limit.
        """
        masks = [self._mask()]
        num_walked = 0
        for token in drafted:
            self._matcher.consume_token(token)
            num_walked += 1
            masks.append(self._mask())
        self._matcher.rollback(num_walked)
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot continue: {self._matcher.get_error().strip()}")
        return masks

    def _mask(self) -> Mask:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
