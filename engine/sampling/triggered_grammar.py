"""Hold only tool calls to a grammar: from what begins one until it is complete.

All other text is free, and while it is written, steps are dispatched ahead: the token after the one in flight
is chosen among those that may begin a call if the one in flight turns out to begin one.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import mlx.core as mx

from reprise.engine.interface.request import Trigger
from reprise.engine.sampling.grammar import Mask, Matcher

MAX_PROMPT_TOKENS = 16
"""How many of the prompt's last tokens may have begun a call."""


class TriggeredMatcher(Matcher):
    """The position of one answer outside or inside a call.

    tokens: those that begin a call at once; see Trigger.
    trigger: what begins a call. start: makes a matcher that stands before it. piece: returns a token's bytes.
    prompt: the tokens before the answer, which may have begun a call with one of the trigger's tokens.
    """

    def __init__(
        self,
        trigger: Trigger,
        start: Callable[[], Matcher],
        piece: Callable[[int], bytes],
        prompt: Sequence[int] = (),
    ) -> None:
        self.tokens, self._text = frozenset(trigger.tokens), trigger.text.encode()
        self._start, self._piece = start, piece
        self._next = start()
        self._call: Matcher | None = None
        # The answer's last tokens, if they may begin the trigger's text.
        self._begun: list[int] = []
        self._first_masks: dict[int, mx.array] | None = None
        tail = list(prompt[-MAX_PROMPT_TOKENS:])
        begins = [at for at, token in enumerate(tail) if token in self.tokens]
        if begins and self._is_call(tail[begins[-1] :]):
            self.commit(tail[begins[-1] :])

    @property
    def may_run_ahead(self) -> bool:
        """See Matcher."""
        return self._call is None and not self._begun

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
                num_free, begun, is_call = self._find_call(left)
                left = left[num_free:]
                self._begun = [] if is_call else begun
                if not is_call:
                    return
                self._call, self._next = self._next, self._start()
                left = begun + left
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
        num_free, begun, is_call = self._find_call(tokens)
        if not is_call:
            return num_free
        num_allowed = self._next.count_allowed([*begun, *tokens[num_free:]])
        return num_free + max(0, num_allowed - len(begun))

    def masks(self, drafted: Sequence[int] = ()) -> list[Mask | None]:
        """Return the masks as Matcher.masks() does; None where any token may come."""
        if self._call is not None:
            return _without_ends(self._call, self._call.masks(drafted))
        num_free, begun, is_call = self._find_call(drafted)
        if not is_call:
            return [None] * (len(drafted) + 1)
        masks = self._next.masks([*begun, *drafted[num_free:]])
        return [*[None] * num_free, *_without_ends(self._next, masks[len(begun) :])]

    def mask_behind(self, token: mx.array) -> mx.array:
        """Return which tokens may come behind a token that is only known on the device: (vocabulary,) bool.

        The token follows the answer outside a call. Only where there are tokens that begin one.
        """
        if self._first_masks is None:
            self._first_masks = {one: self._first_mask(one) for one in sorted(self.tokens)}
        allowed = [mx.logical_or(token != begin, mask) for begin, mask in self._first_masks.items()]
        return reduce(mx.logical_and, allowed)

    def _first_mask(self, begin: int) -> mx.array:
        """Return which tokens may come behind a token that begins a call: (vocabulary,) bool."""
        call = self._start()
        is_call = self._is_call([begin])
        call.commit([begin] if is_call else [])
        (mask,) = call.masks()
        assert mask is not None
        return mx.array(mask) if is_call else mx.ones(len(mask), mx.bool_)

    def _is_call(self, tokens: list[int]) -> bool:
        return self._next.count_valid(tokens) == len(tokens)

    def _find_call(self, tokens: Sequence[int]) -> tuple[int, list[int], bool]:
        """Find where tokens that follow the answer outside a call begin one.

        Returns the number of tokens up to the end of the trigger, or of all if there is none; the last tokens
        of answer and these that hold the trigger, or may begin its text; and whether a call begins.
        """
        begun = self._begun
        for at, token in enumerate(tokens):
            begun = self._of_trigger([*begun, token]) if self._text else [token]
            is_trigger = self._text in self._joined(begun) if self._text else token in self.tokens
            if is_trigger and self._is_call(begun):
                return at + 1, begun, True
            if is_trigger or not self._text:
                begun = []
        return len(tokens), begun, False

    def _of_trigger(self, tokens: list[int]) -> list[int]:
        """Return the fewest last tokens that hold the trigger's text, or may begin it; none if none may."""
        text, sought = self._joined(tokens), self._text
        longest = min(len(sought) - 1, len(text))
        start = text.find(sought)
        if start < 0:
            num = next((n for n in range(longest, 0, -1) if text.endswith(sought[:n])), 0)
            start = len(text) - num
        for at in range(len(tokens)):
            if len(self._joined(tokens[: at + 1])) > start:
                return tokens[at:]
        return []

    def _joined(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self._piece, tokens))


def _without_ends(matcher: Matcher, masks: Sequence[Mask | None]) -> list[Mask | None]:
    """Return masks, None in place of those that allow nothing but the end of the answer."""
    return [None if matcher.allows_only_end(mask) else mask for mask in masks]
