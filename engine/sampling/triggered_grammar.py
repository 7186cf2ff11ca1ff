"""Hold only a tool call to a grammar: from the token that begins it, until the call is complete.

All other text is free, and while it is written, steps are dispatched ahead: the token after the one in flight
is chosen among those that may begin a call if the one in flight turns out to begin one.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from reprise.engine.sampling.grammar import Mask, Matcher


class TriggeredMatcher(Matcher):
    """The position of one answer outside or inside a call.

    trigger: the token that begins a call. start: makes a matcher that stands behind that token.
    """

    def __init__(self, trigger: int, start: Callable[[], Matcher]) -> None:
        self.trigger = trigger
        self._start = start
        self._next = start()
        self._call: Matcher | None = None
        self._first_mask: mx.array | None = None

    @property
    def may_run_ahead(self) -> bool:
        """See Matcher."""
        return self._call is None

    @property
    def is_complete(self) -> bool:
        """See Matcher."""
        return self._call is None or self._call.is_complete

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end of the answer may follow: never, for a call may."""
        return False

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance by tokens of the answer. Raises as Matcher.commit()."""
        left = list(tokens)
        while left:
            if self._call is None:
                if self.trigger not in left:
                    return
                left = left[left.index(self.trigger) + 1 :]
                self._call, self._next = self._next, self._start()
            # At least one, so that what the grammar does not allow is an error.
            num = max(1, self._call.count_valid(left))
            self._call.commit(left[:num])
            left = left[num:]
            if self._call.is_over:
                self._call = None

    def forced_tokens(self) -> list[int]:
        """See Matcher."""
        return [] if self._call is None else self._call.forced_tokens()

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Count the leading tokens that may follow, at most up to the end of the next call."""
        if self._call is not None:
            return self._call.count_allowed(tokens)
        num_free = self._count_free(tokens)
        return num_free + self._next.count_allowed(list(tokens)[num_free:])

    def masks(self, drafted: Sequence[int] = ()) -> list[Mask | None]:
        """Return the masks as Matcher.masks() does; None where any token may come."""
        num_free = 0 if self._call else self._count_free(drafted)
        if self._call is None and (not num_free or drafted[num_free - 1] != self.trigger):
            return [None] * (len(drafted) + 1)
        call = self._call or self._next
        masks = call.masks(list(drafted)[num_free:])
        return [*[None] * num_free, *(None if call.allows_only_end(mask) else mask for mask in masks)]

    def first_mask(self) -> mx.array:
        """Return which tokens may come behind the trigger, on the device: (vocabulary,) bool."""
        if self._first_mask is None:
            (mask,) = self._next.masks()
            assert mask is not None
            self._first_mask = mx.array(mask)
        return self._first_mask

    def _count_free(self, tokens: Sequence[int]) -> int:
        """Count the tokens up to the next trigger, it included."""
        return next((at + 1 for at, token in enumerate(tokens) if token == self.trigger), len(tokens))
