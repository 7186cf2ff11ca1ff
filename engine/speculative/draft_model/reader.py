"""One sequence as the draft model reads it: the committed text in ids of its own."""

from collections.abc import Callable, Sequence

from engine.kv_cache.per_row import Caches
from engine.kv_cache.sliding_window import ROLLBACK_TOKENS
from engine.speculative.translation.translator import Translator

MAX_IDS_PER_TOKEN = 2
"""A text that takes the draft model more ids than that for each of the target's tokens is not drafted for:
so much memory is set aside for them, and drafting would hardly pay."""
SPARE_IDS = 256
"""Beyond that; a short text may take more."""

MAX_UNSETTLED = ROLLBACK_TOKENS // 2
"""Ids that may still change, and so may have to be forgotten together with a draft."""


class UnreadableTextError(Exception):
    """The draft model cannot read a text; the message says why. Nobody's fault: it gets no drafts of it."""


GiveUp = Callable[[Exception], None]
"""Called with what kept the draft model from going on."""


class DraftReader:
    """What the draft model has read of one sequence.

    give_up: to be called when it can read no more.
    ids: of its own, for all tokens that were read. num_settled: how many leading ones of them never change.
    caches, num_computed: its caches while it reads the prompt, and how many ids they hold.
    """

    def __init__(self, translator: Translator, caches: Caches, context_tokens: int, give_up: GiveUp) -> None:
        self.translator = translator
        self.give_up = give_up
        self.caches = caches
        self.num_computed = 0
        self.ids: Sequence[int] = ()
        self.num_settled = 0
        self._context_tokens = context_tokens
        self._num_read = 0

    def read(self, tokens: Sequence[int], num_ahead: int = 0) -> int:
        """Take in all committed tokens, those that were read before among them.

        num_ahead: ids that are to be drafted behind them.
        Returns how many leading ids are the same as before.
        Raises UnreadableTextError, or what a tokenizer raises.
        """
        reading = self.translator.translate_text(tokens)
        num_ids = len(reading.ids)
        if num_ids + num_ahead > self._context_tokens:
            raise UnreadableTextError(
                f"the draft model reads {self._context_tokens} tokens, and the text has {num_ids} of its own"
            )
        if num_ids > MAX_IDS_PER_TOKEN * len(tokens) + SPARE_IDS:
            raise UnreadableTextError(f"{len(tokens)} tokens are {num_ids} of the draft model's, far too many")
        if num_ids - reading.num_settled > MAX_UNSETTLED:
            raise UnreadableTextError(f"{num_ids - reading.num_settled} of its tokens may still change")
        self.ids, self.num_settled, self._num_read = reading.ids, reading.num_settled, len(tokens)
        return reading.num_same

    def release_caches(self) -> Caches:
        """The caches, which are the rows' from now on."""
        caches, self.caches = self.caches, []
        return caches

    def count_left(self, num_tokens: int) -> int:
        """What is left to read and to compute of a prompt of num_tokens, in tokens: 0 when it may draft."""
        return num_tokens - self._num_read + self._num_to_compute

    @property
    def _num_to_compute(self) -> int:
        # What is not settled may have to be computed anew, and one id must be left for its logits.
        return max(0, min(self.num_settled, len(self.ids) - 1) - self.num_computed)

    def next_chunk(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """The next ids of a prompt to compute, at most so many, perhaps none; reads on as far as need be.

        Raises as read() does.
        """
        if self._num_to_compute < most and self._num_read < len(tokens):
            self.read(tokens[: self._num_read + most])
        return self.ids[self.num_computed : self.num_computed + min(most, self._num_to_compute)]
