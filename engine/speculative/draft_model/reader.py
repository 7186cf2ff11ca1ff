"""One sequence as the draft model reads it: the committed text in the draft model's ids."""

from collections.abc import Callable, Sequence

from engine.kv_cache.per_row import Caches
from engine.kv_cache.sliding_window import ROLLBACK_TOKENS
from engine.speculative.translation.translator import Translator

MAX_IDS_PER_TOKEN = 2
"""Maximum ids of the draft model per target token, for which memory is reserved.

For a text that takes more nothing is drafted, as it would hardly pay.
"""

SPARE_IDS = 256
"""Ids allowed in addition, since a short text may take more per token."""

MAX_UNSETTLED = ROLLBACK_TOKENS // 2
"""Maximum ids that may still change: caches must be able to roll these back together with a draft."""


class UnreadableTextError(Exception):
    """The draft model cannot read a text, so nothing is drafted; not a fault. The message says why."""


GiveUp = Callable[[Exception], None]
"""Called with the exception that makes the draft model stop reading a sequence."""


class DraftReader:
    """The part of one sequence that the draft model has read.

    give_up: for the caller to call if the draft model cannot continue.
    ids: the draft model's ids of all tokens read. num_settled: leading ids that never change.
    caches, num_computed: the draft model's caches while it reads the prompt, and the ids that they hold.
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
        """Read all committed tokens, including those read before.

        num_ahead: ids that will be drafted after them.
        Returns the number of leading ids that are the same as before.
        Raises UnreadableTextError, or whatever a tokenizer raises.
        """
        text = self.translator.translate_text(tokens)
        num_ids = len(text.ids)
        if num_ids + num_ahead > self._context_tokens:
            raise UnreadableTextError(
                f"the draft model reads {self._context_tokens} tokens; "
                f"the text takes {num_ids} of its tokens and the draft {num_ahead}"
            )
        max_ids = MAX_IDS_PER_TOKEN * len(tokens) + SPARE_IDS
        if num_ids > max_ids:
            raise UnreadableTextError(
                f"{len(tokens)} tokens take {num_ids} of the draft model's; the limit is {max_ids}"
            )
        if num_ids - text.num_settled > MAX_UNSETTLED:
            raise UnreadableTextError(
                f"{num_ids - text.num_settled} of the draft model's tokens may still change; "
                f"the limit is {MAX_UNSETTLED}"
            )
        self.ids, self.num_settled, self._num_read = text.ids, text.num_settled, len(tokens)
        return text.num_same

    def release_caches(self) -> Caches:
        """Return the caches and drop them here: from now on the rows of the batch own them."""
        caches, self.caches = self.caches, []
        return caches

    def count_left(self, num_tokens: int) -> int:
        """Count the tokens left to read and compute of a prompt of num_tokens; 0 once drafts may begin."""
        return num_tokens - self._num_read + self._num_to_compute

    @property
    def _num_to_compute(self) -> int:
        # Unsettled ids may change, and one id must remain to be fed for its logits.
        return max(0, min(self.num_settled, len(self.ids) - 1) - self.num_computed)

    def next_chunk(self, tokens: Sequence[int], max_ids: int) -> Sequence[int]:
        """Return the next ids of a prompt to compute, at most max_ids, perhaps none; reads more if needed.

        Raises as read() does.
        """
        if self._num_to_compute < max_ids and self._num_read < len(tokens):
            self.read(tokens[: self._num_read + max_ids])
        return self.ids[self.num_computed : self.num_computed + min(max_ids, self._num_to_compute)]
