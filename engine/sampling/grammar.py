"""Constrain answers to a grammar with llguidance: compute which tokens may come next, and which must.

A matcher stands at the end of the committed answer. For a draft, it advances through the drafted tokens to
compute each position's mask, then rolls back, so rejected drafts leave no trace.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NoReturn

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.errors import GrammarCostError, GrammarError
from reprise.engine.interface.request import Grammar
from reprise.engine.interface.spans import spend
from reprise.engine.sandbox.child_process import CallError, ChildProcess, Limits
from reprise.engine.text.tokenizer import Tokenizer
from reprise.engine.text.vocabulary import Vocabulary, VocabularyError

log = logging.getLogger("reprise.engine")

TRIAL_LIMITS = Limits(cpu_s=0.5, wall_s=10.0, memory_bytes=512 * 2**20)
"""Limits for compiling a grammar. The largest of usual kinds takes a tenth of that time."""
TRIALS = ChildProcess("grammars", TRIAL_LIMITS)
"""Compiles each grammar first, as it can be killed: multiples of a large number or many patterns at once take
minutes, and a call cannot be interrupted.
"""
MAX_COMPILED = 64
"""Maximum compiled grammars to keep; the least recently used is dropped first."""

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The whitespace of JSON, as most models write it. Were it free, a weak model could write blanks forever."""

MAX_ITEMS = 20_000
"""Maximum ways in which a JSON schema may continue at one position; an optional property counts as four."""

MAX_LARK_ITEMS = 2_500
"""The same for a Lark grammar, where a token's time can grow with the cube of this number. One schema of 500
optional properties fits."""

MAX_STEP_ITEMS = 50_000
MAX_STEP_FUEL = 200_000
"""Limits on parsing and on lexing to compute one mask."""

MAX_LEXER_STATES = 250_000
"""Limit on one answer's memory for its grammar: a state takes 1 to 2 KB."""

_LIMIT_REACHED = re.compile("too many|max is|too big|too complex", re.IGNORECASE)
"""Matches llguidance's errors about a limit of the above."""

ANY = "any"
"""The compiled form of a grammar of this kind."""

Mask = NDArray[np.bool_]
"""(vocabulary,) True where a token is allowed."""


MAX_TOKEN_S, MAX_TOKEN_STEPS = 0.25, 1.0
"""Maximum seconds that the grammar may take for one token of an answer, or plain steps if that is longer."""

MAX_MEAN_S, MAX_MEAN_STEPS = 0.02, 0.2
"""The same for a token on average over the last WINDOW_TOKENS tokens, and for the masks of one draft, whose
rest is then dropped."""

WINDOW_TOKENS = 32

MAX_DRAFTING_MEAN_S, MAX_DRAFTING_MEAN_STEPS = 0.0025, 0.05
"""The same: above this average an answer gets no drafts. Each drafted position costs about as much as a
token, and the longer a step takes, the more is gained."""


class Stopwatch:
    """Measures the time spent in grammars. It cannot be nested, and is used by one thread only.

    now: a clock in seconds; by default the thread's own CPU time, so that a grammar is not charged for a busy
        machine.
    last_s: seconds of the last measurement. Every measurement is counted in the span "grammars".
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self._now = now
        self._started_at = 0.0
        self.last_s = 0.0

    def __enter__(self) -> None:
        self._started_at = self._now()

    def __exit__(self, *raised: object) -> None:
        self.last_s = self._now() - self._started_at
        spend("grammars", self.last_s)


class GrammarBudget:
    """The seconds that an answer's tokens have spent in its grammar, and their limits.

    Only tokens of the answer are charged, as if there were no drafts, so that no draft makes an answer fail.

    plain_s: seconds of a plain step; 0 if not known. walk_s: maximum seconds for the masks of one draft.
    """

    def __init__(self, plain_s: float = 0.0) -> None:
        self.walk_s = self._mean_s = max(MAX_MEAN_S, MAX_MEAN_STEPS * plain_s)
        self._token_s = max(MAX_TOKEN_S, MAX_TOKEN_STEPS * plain_s)
        self._drafting_mean_s = max(MAX_DRAFTING_MEAN_S, MAX_DRAFTING_MEAN_STEPS * plain_s)
        self._tokens_s: deque[float] = deque(maxlen=WINDOW_TOKENS)

    @property
    def has_time_for_drafts(self) -> bool:
        """Whether the grammar is fast enough to check drafts as well."""
        return sum(self._tokens_s) <= self._drafting_mean_s * WINDOW_TOKENS

    def charge(self, taken_s: float, num_tokens: int) -> None:
        """Charge taken_s to num_tokens tokens that were committed together, in equal parts."""
        if num_tokens:
            self._tokens_s.extend([taken_s / num_tokens] * num_tokens)

    def check(self) -> None:
        """Raise GrammarCostError if the tokens so far took too long."""
        longest_s, spent_s = max(self._tokens_s, default=0.0), sum(self._tokens_s)
        if longest_s > self._token_s:
            raise GrammarCostError(
                f"took {1000 * longest_s:.0f} ms to choose the tokens allowed at one position; at most "
                f"{1000 * self._token_s:.0f} ms are allowed"
            )
        if spent_s > self._mean_s * WINDOW_TOKENS:
            raise GrammarCostError(
                f"took {1000 * spent_s:.0f} ms for the last {len(self._tokens_s)} tokens; at most "
                f"{1000 * self._mean_s * WINDOW_TOKENS:.0f} ms for {WINDOW_TOKENS} tokens are allowed"
            )


class Grammars:
    """Compiled grammars for one vocabulary. Thread-safe; each matcher belongs to one thread.

    watch: measures the matchers' time.
    plain_s: seconds of a plain step, which set the time that later matchers may take; 0 if not known.
    """

    def __init__(self, tokenizer: Tokenizer, watch: Stopwatch | None = None) -> None:
        self.plain_s = 0.0
        self._tokenizer = tokenizer
        self._made: LLTokenizer | VocabularyError | None = None
        self._is_prepared = False
        self._making = threading.Lock()
        self._watch = watch or Stopwatch()
        self._compiled = BoundedCache[LLMatcher](lambda _: 1, MAX_COMPILED)
        self._tokens_with: dict[str, tuple[int, ...]] = {}

    @property
    def vocabulary(self) -> LLTokenizer:
        """The vocabulary in llguidance's form. Raises GrammarError if it cannot be made.

        It is made at the first use. For a large vocabulary that blocks all threads of the process for some
        tenths of a second.
        """
        with self._making:
            self._made = self._made or _make_vocabulary(self._tokenizer)
        if isinstance(self._made, VocabularyError):
            raise GrammarError(f"this model takes no grammar: {self._made}")
        return self._made

    def prepare(self) -> bool:
        """Do one of two parts of the work on the vocabulary in advance; return whether one was left.

        The first makes the vocabulary, and starts the process that tries grammars. The second sorts tokens
        into slices, with which large masks are computed faster.
        """
        if self._is_prepared:
            return False
        with self._making:
            if self._made is None:
                self._made = _make_vocabulary(self._tokenizer)
                TRIALS.start()
            else:
                if isinstance(self._made, LLTokenizer):
                    self._made = self._made.with_slices(LLTokenizer.general_slices())
                self._is_prepared = True
        return True

    def compile(self, grammar: Grammar) -> Grammar:
        """Compile a grammar. May take long.

        Raises GrammarError if it cannot be used, and ChildError if the machine is at fault.
        """
        if grammar.compiled is not None:
            return grammar
        compiled: Any = ANY
        if grammar.kind != "any":
            text = replace(grammar, thinking=None, trigger=None)
            compiled = self._compiled.get(text)
            if compiled is None:
                compiled = self._compile(text)
                self._compiled.put(text, compiled)
        trigger = grammar.trigger
        if trigger is not None and trigger.text:
            trigger = replace(trigger, tokens=self._find_tokens(trigger.text))
        return replace(grammar, compiled=compiled, trigger=trigger)

    def matcher(self, grammar: Grammar) -> "Matcher":
        """Make a matcher for an empty answer. It takes microseconds if the grammar is compiled.

        Raises GrammarError if the grammar cannot be used.
        """
        tokenizer, compiled = self._tokenizer, self.compile(grammar).compiled
        budget = GrammarBudget(self.plain_s)
        return Matcher(compiled, tokenizer.vocab_size, tokenizer.eos_ids, self._watch, budget)

    def _find_tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens that contain a text."""
        if text not in self._tokens_with:
            tokenizer, sought = self._tokenizer, text.encode()
            every = range(tokenizer.vocab_size)
            self._tokens_with[text] = tuple(one for one in every if sought in tokenizer.piece(one))
        return self._tokens_with[text]

    def _compile(self, grammar: Grammar) -> LLMatcher:
        text, limits = _to_llguidance(grammar), _limits(grammar)
        try:
            TRIALS.call_twice(text=text, limits=limits)
        except CallError as refused:
            raise GrammarError(f"{refused} to compile; simplify it") from None
        matcher = LLMatcher(self.vocabulary, text, log_level=0, limits=LLParserLimits(**limits))
        if matcher.is_error():
            raise GrammarError(matcher.get_error().strip())
        if warnings := matcher.get_grammar_warnings():
            raise GrammarError("; ".join(warnings))
        if fault := _try_start(matcher.deep_copy()):
            raise GrammarError(f"no answer can begin: {fault.strip()}")
        return matcher


class _Tokens:
    """The tokens of a vocabulary, and its encoding of text, as llguidance asks for them."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.eos[0]
        self.tokens = [piece or b"<[%d]>" % token for token, piece in enumerate(vocabulary.pieces)]
        for token in vocabulary.special_strings:
            self.tokens[token] = tokenizer.piece(token)
        # Nor does llguidance know an id without a token, or an added token such as <think>, as text.
        added = tokenizer.backend.get_added_tokens_decoder()
        named = {token for token, entry in added.items() if re.fullmatch("<.*>", entry.content, re.DOTALL)}
        blank = (token for token, piece in enumerate(vocabulary.pieces) if not piece)
        self.special_token_ids = sorted(named.union(blank))

    def __call__(self, text: bytes) -> list[int]:
        """Return the ids of text, which may continue other text."""
        return self._vocabulary.encode_best_effort(text)[0]


def _make_vocabulary(tokenizer: Tokenizer) -> LLTokenizer | VocabularyError:
    """Return llguidance's vocabulary, without slices, or the reason why there is none."""
    start = time.perf_counter()
    try:
        vocabulary = Vocabulary(tokenizer)
        if not vocabulary.eos:
            raise VocabularyError("no token ends its answers")
        tokens = TokenizerWrapper(_Tokens(tokenizer, vocabulary))
        made = LLTokenizer(tokens, eos_token=sorted(vocabulary.eos), slices=[])
    except VocabularyError as fault:
        return fault
    # llguidance may raise anything about a vocabulary that it has not met.
    except Exception as fault:
        log.error("llguidance does not take this vocabulary", exc_info=True)
        return VocabularyError(str(fault))
    log.debug("made the vocabulary for grammars in %.1f s", time.perf_counter() - start)
    return made


def _limits(grammar: Grammar) -> dict[str, Any]:
    """Return the limits on compiling a grammar and on computing one mask."""
    return {
        "initial_lexer_fuel": 200_000,
        "max_grammar_size": 100_000,
        "max_items_in_row": MAX_LARK_ITEMS if grammar.kind == "lark" else MAX_ITEMS,
        "step_max_items": MAX_STEP_ITEMS,
        "step_lexer_fuel": MAX_STEP_FUEL,
        "max_lexer_states": MAX_LEXER_STATES,
    }


def _try_start(matcher: LLMatcher) -> str:
    """Try to start an answer; return the error, "" if there is none.

    Some grammars compile but cannot start: those that can never end, or whose first token takes too much
    computation.
    """
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
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
            case "any":
                raise GrammarError("has no text")
    except ValueError as fault:
        raise GrammarError(str(fault)) from fault


class Matcher:
    """The position of one answer in its grammar.

    End-of-answer tokens are never fed to llguidance, because its rollback does not count them.

    compiled: the grammar, which does not change. watch: measures the seconds spent in it. budget: limits them
        for this answer.
    """

    def __init__(
        self,
        compiled: LLMatcher,
        vocab_size: int,
        eos_ids: Collection[int],
        watch: Stopwatch,
        budget: GrammarBudget,
    ) -> None:
        self._compiled = compiled
        self._matcher = compiled.deep_copy()
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._watch = watch
        self._budget = budget
        self._masks_s: list[float] = []
        # The answer, and the tokens behind it that the last draft was walked through.
        self._tokens: list[int] = []
        self._walked: list[int] = []
        # How many tokens the answer had where it left the last draft; None once that has no effect.
        self._left_at: int | None = None

    @property
    def may_run_ahead(self) -> bool:
        """Whether the next step may be dispatched before this step's token is known."""
        return False

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end of the answer may follow."""
        return bool(self._matcher.is_stopped())

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance by tokens of the answer.

        Raises GrammarError if the grammar does not allow them, GrammarCostError if it exceeds a limit.
        """
        added = [token for token in tokens if token not in self._eos_ids]
        with self._watch:
            is_allowed = self._matcher.consume_tokens(added)
        self._follow(added)
        self._tokens += added
        self._walked = self._walked[len(added) :]
        # Masks of rejected positions are not charged.
        self._budget.charge(sum(self._masks_s[: len(tokens)]) + self._watch.last_s, len(tokens))
        self._masks_s = []
        if not is_allowed:
            self._raise_error("the answer does not match its grammar")

    @property
    def is_complete(self) -> bool:
        """Whether the grammar lets the answer end here."""
        return bool(self._matcher.is_accepting())

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next; often there are none, and never if the grammar is slow."""
        if self._matcher.is_stopped() or not self._budget.has_time_for_drafts:
            return []
        with self._watch:
            return list(self._matcher.compute_ff_tokens())

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Count the leading tokens that the grammar allows, up to the first end-of-answer token.

        Returns 0 if the grammar is slow.
        """
        return self.count_valid(tokens) if self._budget.has_time_for_drafts else 0

    def count_valid(self, tokens: Sequence[int]) -> int:
        """Count the leading tokens that even a slow grammar allows, up to the first end-of-answer token."""
        before_end = list(takewhile(lambda token: token not in self._eos_ids, tokens))
        if not before_end:
            return 0
        with self._watch:
            return self._matcher.validate_tokens(before_end)

    def allows_only_end(self, mask: "Mask | None") -> bool:
        """Return whether a mask allows nothing but tokens that end the answer."""
        return mask is not None and np.count_nonzero(mask) == sum(
            bool(mask[token]) for token in self._eos_ids if token < len(mask)
        )

    def masks(self, drafted: Sequence[int] = ()) -> list[Mask | None]:
        """Return the mask of the next token and of the token after each drafted one: (k + 1,) masks.

        There are fewer if they exceed the budget or a limit: the rest of the draft must be dropped.

        drafted: (k,) tokens that the grammar allows, as counted by count_allowed().
        Raises GrammarCostError if the grammar exceeds a limit or the answer its budget.
        """
        self._budget.check()
        self._follow(drafted)
        if self._left_at is not None:
            with self._watch:
                self._forget_draft(min(self._left_at, len(self._tokens)))
        masks: list[Mask | None] = [self._mask()]
        self._masks_s = [self._watch.last_s]
        if self._matcher.is_error():
            self._raise_error("the grammar cannot continue")
        for token in drafted:
            if sum(self._masks_s) > self._budget.walk_s:
                break
            mask = self._mask(token)
            # Without the draft, the answer may never come here.
            if self._matcher.is_error():
                self._restart()
                return masks
            masks.append(mask)
            self._masks_s.append(self._watch.last_s)
        num_walked = len(masks) - 1
        if num_walked > len(self._walked):
            self._walked = list(drafted[:num_walked])
        # Some grammars know no rollback.
        if not self._matcher.rollback(num_walked):
            self._restart()
        return masks

    def _mask(self, after: int | None = None) -> Mask:
        """Return the mask of the next token. after: a drafted token to advance by first."""
        with self._watch:
            if after is not None:
                self._matcher.consume_token(after)
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Note where tokens after the answer, committed or drafted, diverge from the last draft."""
        pairs = zip(self._walked, tokens, strict=False)
        num_same = next((at for at, (walked, token) in enumerate(pairs) if walked != token), None)
        if num_same is not None:
            self._left_at, self._walked = len(self._tokens) + num_same, []

    def _forget_draft(self, length: int) -> None:
        """Replace llguidance's cached mask, which is from a draft, by one from the answer.

        It caches one mask by its lexer's state and the number of lexemes, and returns it for any text with
        the same two. A mask from before such text cannot be mistaken for one within it.

        length: leading tokens of the answer that the draft shared.
        """
        num_now = len(self._tokens)
        while self._matcher.rollback(num_now - length):
            # Where bytes are forced, it neither keeps a mask nor gives out one that it kept.
            if not self._matcher.compute_ff_bytes():
                self._matcher.compute_bitmask()
                self._matcher.consume_tokens(self._tokens[length:])
                self._left_at = None
                return
            if not length:
                break
            num_now, length = length, length - 1
        self._restart()

    def _restart(self) -> None:
        """Begin the grammar anew, and advance to the end of the answer."""
        self._matcher = self._compiled.deep_copy()
        self._matcher.consume_tokens(self._tokens)
        self._walked, self._left_at = [], None

    def _raise_error(self, what: str) -> NoReturn:
        """Raise llguidance's error: GrammarCostError if it is about a limit, else GrammarError."""
        fault, _, _ = self._matcher.get_error().strip().partition("\n")
        if _LIMIT_REACHED.search(fault):
            raise GrammarCostError(f"takes too much computation: {fault}")
        raise GrammarError(f"{what}: {fault}")
