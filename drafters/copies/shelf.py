"""Texts of a sequence's views, with one index over all of them."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from reprise.drafters.base import SLICE_TOKENS, Slices
from reprise.drafters.copies.occurrences import LONGEST, Hashes, Ids, Match, Occurrences

MAX_TOKENS = 1 << 17
"""Maximum number of tokens of one sequence's views."""

_MIN_CAPACITY = 4096
_MIN_NGRAM_SIZE = 2


class Shelf:
    """Texts that are added one after the other, as far as there is room.

    num_tokens: how many tokens to have room for, at most MAX_TOKENS.
    tokens: those of all texts; grows in place.
    """

    def __init__(self, num_tokens: int) -> None:
        self.tokens: Ids = array("I")
        self.capacity = min(max(_MIN_CAPACITY, 1 << num_tokens.bit_length()), MAX_TOKENS)
        self._index = Occurrences(self.tokens, self.capacity)
        self._starts: list[int] = []

    @property
    def room(self) -> int:
        """The number of tokens that there is still room for."""
        return self.capacity - 1 - len(self.tokens)

    def add(self, text: Sequence[int], num_tokens: int = MAX_TOKENS) -> Slices:
        """Return the work of adding a text's first tokens. Texts are added one after the other."""
        index, tokens = self._index, self.tokens
        if not tokens:
            yield from index.touch()
        first, num_tokens = len(tokens), min(len(text), num_tokens, self.room)
        if num_tokens > 0:
            self._starts.append(first)
        for at in range(0, num_tokens, SLICE_TOKENS):
            part = array("I", text[at : min(at + SLICE_TOKENS, num_tokens)])
            before = tokens[max(first, first + at - LONGEST) :]
            tokens += part
            index.extend(part, before)
            yield len(part)

    def find(self, hashes: Hashes, end: Ids) -> Match | None:
        """Return the longest occurrence of a text's end. For the parameters see Occurrences.find."""
        return self._index.find(hashes, end, self._is_followed, _MIN_NGRAM_SIZE)

    def _is_followed(self, position: int) -> bool:
        """Return whether a text goes on at a position."""
        starts = self._starts
        return position < len(self.tokens) and starts[bisect_right(starts, position) - 1] != position

    def end_of(self, position: int) -> int:
        """Return the position behind the text that the token at a position belongs to."""
        at = bisect_right(self._starts, position)
        return self._starts[at] if at < len(self._starts) else len(self.tokens)
