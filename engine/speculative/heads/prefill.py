"""The prefill of a head for one sequence: the states of its text that were fed, and those to come."""

from collections.abc import Sequence

import mlx.core as mx

from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.disk import Loading
from reprise.engine.kv_cache.rows import evaluate
from reprise.engine.speculative.draft_model.draft_prefill import TextPrefill
from reprise.engine.speculative.heads.head import Head
from reprise.engine.speculative.heads.states import States

MAX_FILLED = 64
"""Maximum positions whose states are not known to feed as zeros, so that the others keep their distances."""


class HeadPrefill(TextPrefill):
    """The draft prefill of one sequence by a head.

    states: the target's states of the positions not fed yet. num_idle: steps since the row last was fed or
        drafted for.
    num_before: positions before the first known state; their keys and values came from the prefix cache.
    num_skipped: how many positions the head's caches lack; all later ones stand that much earlier in them.
    loading: the files that are being read. is_disk_searched: whether files were looked for.
    """

    def __init__(self, head: Head, states: States, num_before: int = 0) -> None:
        super().__init__()
        self.states = states
        self.num_idle = 0
        self.num_before = num_before
        self.num_skipped = 0
        self.loading: Loading | None = None
        self.is_disk_searched = False
        self._head = head

    def begin(self, caches: Caches, num_computed: int) -> None:
        """Begin; feed zeros for positions that are not in the caches and whose states are not known.

        If these are more than MAX_FILLED, one position of zeros stands for them all, as the head takes the
        first position in its caches for the first of a text.
        """
        num_missing = self.num_before - num_computed
        num_filled = num_missing if num_missing <= MAX_FILLED else 1
        self.states.prepend_zeros(num_filled)
        self.num_skipped = num_missing - num_filled
        if (bounds := self._head.bounds) and num_computed + self.states.num > bounds.most:
            sink = max(0, bounds.sink - num_computed)
            num_dropped = max(0, self.states.num - sink - bounds.window)
            self.states.drop(sink, num_dropped)
            self.num_skipped += num_dropped
        super().begin(caches, num_computed)

    @property
    def is_waiting(self) -> bool:
        """Whether files with this sequence's keys and values are being read."""
        return self.loading is not None and not self.loading.future.done()

    def compute(self, model: object, tokens: Sequence[int], max_ids: int) -> int:  # noqa: ARG002
        """Feed the head the next positions of a text, and wait for it; return how many, at most max_ids."""
        num_fed = self._until_kept(min(max_ids, self.count_left(len(tokens))))
        if num_fed:
            following = mx.array([self.following(tokens, self.num_computed, num_fed)])
            self._head.feed(self.states.take(num_fed)[None], following, self.caches)
            evaluate(self.caches)
            self.num_computed += num_fed
            self.num_idle = 0
        return num_fed

    def count_left(self, num_tokens: int) -> int:  # noqa: ARG002
        """Count the positions left to feed, without the newest one, from which a draft begins."""
        return max(0, self.states.num - 1)

    def computed_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the ids under which the caches go into the prefix cache; none if positions are lacking."""
        return self.kept_ids(tokens, self.num_computed)

    def kept_ids(self, tokens: Sequence[int], num_held: int) -> Sequence[int]:
        """Return the ids under which num_held positions are kept, the token after each; none if some lack."""
        return () if self.num_skipped else self.following(tokens, 0, num_held)

    def following(self, tokens: Sequence[int], num_held: int, num: int) -> list[int]:
        """Return the token after each of num positions, which come after the first num_held in the caches."""
        start = self.num_skipped + num_held + 1
        return list(tokens[start : start + num])
