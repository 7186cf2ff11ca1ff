"""One sequence's draft prefill: its text in the draft model's ids, computed slice by slice."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from reprise.engine.kv_cache.buffers import State, cut_slice, has_state, take_state
from reprise.engine.kv_cache.per_row import Caches, make_caches
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice, PrefixCache, PrefixStatus
from reprise.engine.kv_cache.rows import Rows, evaluate
from reprise.engine.kv_cache.sliding_window import ROLLBACK_TOKENS
from reprise.engine.speculative.translation import Translator

MAX_IDS_PER_TOKEN = 2
"""Maximum ids of the draft model per target token, for which memory is reserved.

For a text that takes more nothing is drafted, as it would hardly pay.
"""

SPARE_IDS = 256
"""Ids allowed in addition, since a short text may take more per token."""

MAX_UNSETTLED = ROLLBACK_TOKENS // 2
"""Maximum ids that may still change: caches must be able to roll these back together with a draft."""


class UndraftableTextError(Exception):
    """The draft model cannot take a text, so nothing is drafted. Not a bug. The message says why."""


GiveUp = Callable[[Exception], None]
"""Called with the exception that ends a draft prefill."""


class TextPrefill(ABC):
    """The draft prefill of one sequence, by its drafter: a draft model, or a head of the target.

    caches, num_computed: the drafter's caches and the number of ids in them, from begin() until the row of
        the batch owns them. has_begun: whether begin() was called. is_ready: whether the row owns the caches,
        so that it may draft.
    num_before: leading ids that the drafter cannot compute because their states are not known.
    keep_at: numbers of ids at which to store the caches in the prefix cache.
    spent_s: seconds that this draft prefill has taken so far.
    """

    def __init__(self) -> None:
        self.caches: Caches = []
        self.num_computed = 0
        self.has_begun = self.is_ready = False
        self.num_before = 0
        self.keep_at: set[int] = set()
        self.spent_s = 0.0

    def begin(self, caches: Caches, num_computed: int) -> None:
        """Begin with caches that hold the first num_computed ids; compute() continues after those."""
        self.caches, self.num_computed, self.has_begun = caches, num_computed, True

    def _until_kept(self, num_fed: int) -> int:
        """Return how many ids to feed, at most num_fed, to stop where the caches are to be stored."""
        return min([num_fed, *(at - self.num_computed for at in self.keep_at if at > self.num_computed)])

    def release_caches(self) -> Caches:
        """Return the caches and forget them, since the rows of the batch own them from now on."""
        caches, self.caches, self.is_ready = self.caches, [], True
        return caches

    @abstractmethod
    def compute(self, model: Any, tokens: Sequence[int], max_ids: int) -> int:
        """Feed the drafter the next ids of a text, and wait for it; return how many, at most max_ids."""

    @abstractmethod
    def computed_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the ids under which to cache the prefix; none if it must not be cached.

        tokens: all committed tokens of the sequence.
        """

    @property
    def is_waiting(self) -> bool:
        """Whether files are being loaded that this draft prefill needs before it can begin."""
        return False

    @abstractmethod
    def count_left(self, num_tokens: int) -> int:
        """Count the tokens left to translate and compute of a text of num_tokens; 0 once drafts may begin."""


class DraftPrefill(TextPrefill):
    """The draft prefill of one sequence by the draft model.

    context_tokens: the longest text that the draft model takes, in its own ids.
    opening: target tokens before the answer's opening; 0 if it is not known.
    give_up: for the caller to call if the draft model cannot continue.
    ids: the draft model's ids of all tokens translated. num_settled: leading ids that never change.
    """

    def __init__(
        self, translator: Translator, context_tokens: int, give_up: GiveUp, opening: int = 0
    ) -> None:
        super().__init__()
        self.translator = translator
        self.give_up = give_up
        self.ids: Sequence[int] = ()
        self.num_settled = 0
        self._context_tokens = context_tokens
        self._opening = opening
        self._num_translated = 0

    def translate(self, tokens: Sequence[int], num_ahead: int = 0) -> int:
        """Translate all committed tokens into ids, including tokens that earlier calls translated.

        num_ahead: number of ids that will be drafted after them.
        Returns the number of leading ids unchanged since the previous call.
        Raises UndraftableTextError, or whatever a tokenizer raises.
        """
        text = self.translator.translate_text(tokens)
        num_ids = len(text.ids)
        if num_ids + num_ahead > self._context_tokens:
            raise UndraftableTextError(
                f"the draft model reads {self._context_tokens} tokens; "
                f"the text takes {num_ids} of its tokens and the draft {num_ahead}"
            )
        max_ids = MAX_IDS_PER_TOKEN * len(tokens) + SPARE_IDS
        if num_ids > max_ids:
            raise UndraftableTextError(
                f"{len(tokens)} tokens take {num_ids} of the draft model's; the limit is {max_ids}"
            )
        if num_ids - text.num_settled > MAX_UNSETTLED:
            raise UndraftableTextError(
                f"{num_ids - text.num_settled} of the draft model's tokens may still change; "
                f"the limit is {MAX_UNSETTLED}"
            )
        self.ids, self.num_settled, self._num_translated = text.ids, text.num_settled, len(tokens)
        return text.num_same

    def translate_more(self, tokens: Sequence[int], max_tokens: int) -> int:
        """Translate the next max_tokens tokens of a text, or fewer; return how many.

        Stops where the answer begins, so that the caches are stored there: the next turn may leave out the
        reasoning. Raises as translate() does.
        """
        start = self._num_translated
        end = min(len(tokens), start + max_tokens)
        if start < self._opening:
            end = min(end, self._opening)
        if end > start:
            self.translate(tokens if end == len(tokens) else tokens[:end])
        if end == self._opening:
            self.keep_at.add(self.num_settled)
        return end - start

    def compute(self, model: Any, tokens: Sequence[int], max_ids: int) -> int:
        """Feed the draft model the next ids of a text, and wait for it; return how many, at most max_ids.

        Translates more of the text if that is needed. Raises as translate() does.
        """
        if self._num_to_compute < max_ids:
            self.translate_more(tokens, max_ids)
        num_fed = self._until_kept(min(max_ids, self._num_to_compute))
        if num_fed:
            part = self.ids[self.num_computed : self.num_computed + num_fed]
            model(mx.array(list(part))[None], cache=self.caches)
            evaluate(self.caches)
            self.num_computed += num_fed
        return num_fed

    def computed_ids(self, tokens: Sequence[int]) -> Sequence[int]:  # noqa: ARG002
        """Return the draft model's ids that the caches hold."""
        return self.ids[: self.num_computed]

    def count_left(self, num_tokens: int) -> int:
        """Count the tokens left to translate and compute of a text of num_tokens; 0 once drafts may begin."""
        return num_tokens - self._num_translated + self._num_to_compute

    @property
    def num_usable(self) -> int:
        """The number of leading ids that the caches may hold.

        Ids that may still change are excluded, and so is the last one, which must be fed for its logits.
        """
        return max(0, min(self.num_settled, len(self.ids) - 1))

    @property
    def _num_to_compute(self) -> int:
        return max(0, self.num_usable - self.num_computed)


log = logging.getLogger("reprise.engine")

MIN_SAVED_IDS = 32
"""No state is kept for a prefix that saves fewer ids."""


class DraftPrefixes:
    """The draft model's prefix cache. Only settled ids are stored.

    find_fault: returns why the caches cannot be sliced; None if they can.
    budget_bytes: memory for it. find_opening: returns the length before the opening of the answer.
    cache: None if budget_bytes is 0 or the draft model's caches cannot be sliced.
    needs_state: whether those caches hold state besides KV slices.
    """

    def __init__(
        self,
        model: Any,
        find_fault: Callable[[], str | None],
        budget_bytes: int,
        find_opening: Callable[[list[int]], int],
    ) -> None:
        self._make = partial(make_caches, model)
        self._find_opening = find_opening
        self.needs_state = has_state(self._make())
        self.cache: PrefixCache | None = None
        if not budget_bytes:
            return
        if fault := find_fault():
            log.warning("no prefix cache for the draft model, so it computes every text in full: %s", fault)
        else:
            self.cache = PrefixCache(budget_bytes, self._make, self.needs_state)

    def status(self) -> PrefixStatus | None:
        """Return the prefix cache's counts, None without one. May be called on any thread."""
        return self.cache.status() if self.cache else None

    def opening(self, tokens: list[int]) -> int:
        """Return after how many of the target's tokens to store state; 0 for nowhere."""
        return self._find_opening(tokens) if self.cache and self.needs_state else 0

    def look_up(self, prefill: TextPrefill, tokens: Sequence[int], max_tokens: int) -> int:
        """Look up the next max_tokens tokens of a text; begin its prefill once its longest prefix is found.

        The prefix is found once the text's ids differ from those in the cache, or no text is left.
        Returns the number of tokens looked up. Raises as DraftPrefill.translate() does.
        """
        if self.cache is None:
            prefill.begin(self._make(), 0)
            return 0
        assert isinstance(prefill, DraftPrefill)
        num_looked_up = prefill.translate_more(tokens, max_tokens)
        ids = prefill.ids[: prefill.num_usable + 1]
        num_held = self.cache.match(ids)
        if num_held == prefill.num_usable and prefill.count_left(len(tokens)) > num_held:
            return num_looked_up
        # Where texts diverge, the next one may diverge too.
        prefill.keep_at.add(num_held)
        self._begin(prefill, ids)
        return num_looked_up

    def _begin(self, prefill: TextPrefill, ids: Sequence[int]) -> None:
        """Begin to compute after the longest cached prefix of ids, which never includes the last."""
        caches, num_found = (self.cache and self.cache.find(ids)) or (self._make(), 0)
        prefill.begin(caches, num_found)
        wanted = prefill.keep_at if self.needs_state else set()
        prefill.keep_at = {at for at in wanted if at >= num_found + MIN_SAVED_IDS}

    def keep(self, prefill: TextPrefill, tokens: Sequence[int]) -> None:
        """Keep the caches of a draft prefill as a prefix. tokens: all committed tokens of its sequence."""
        caches = prefill.caches
        self._put(prefill.computed_ids(tokens), partial(cut_slice, caches), partial(take_state, caches))

    def keep_row(self, ids: Sequence[int], row: int, rows: Rows) -> None:
        """Keep a row's caches as a prefix of these ids."""
        self._put(ids, partial(rows.kv_slice, row), partial(rows.state, row))

    def _put(self, ids: Sequence[int], cut: CutSlice, take: Callable[[], State]) -> None:
        if self.cache is None:
            return
        try:
            self.cache.put(ids, cut, take())
        except Exception:
            # No request depends on this copy.
            log.warning("a prefix of the draft model could not be cached", exc_info=True)
