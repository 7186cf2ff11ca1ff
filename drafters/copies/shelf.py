"""Texts that an answer may copy from, besides the sequence's own: views of what the prompt shows otherwise."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from drafters.base import SLICE_TOKENS, Slices
from drafters.copies.occurrences import LONGEST, Hashes, Ids, Match, Occurrences

_MIN_CAPACITY = 4096


class Shelf:
    """Texts with one index over all of them. Those of one sequence.

    tokens: of all texts, one after the other; grows in place.
    """

    def __init__(self) -> None:
        self.tokens: Ids = array("I")
        self._index = Occurrences(self.tokens, _MIN_CAPACITY)
        self._starts: list[int] = []

    def add(self, text: Sequence[int]) -> Slices:
        """Return the work of adding a text. Of several, it is done one after the other."""
        index, tokens = self._index, self.tokens
        first = len(tokens)
        self._starts.append(first)
        for at in range(0, len(text), SLICE_TOKENS):
            part = array("I", text[at : at + SLICE_TOKENS])
            while len(tokens) + len(part) >= index.capacity:
                index.grow()
            before = tokens[max(first, len(tokens) - LONGEST) :]
            tokens += part
            index.extend(part, before)
            yield len(part)

    def find(self, hashes: Hashes, end: Ids) -> Match | None:
        """Return the longest occurrence of a text's end. For the parameters see Occurrences.find."""
        return self._index.find(hashes, end, self._is_within, min_ngram_size=2)

    def _is_within(self, position: int) -> bool:
        """Return whether a text has a token at a position, and before it."""
        starts = self._starts
        return position < len(self.tokens) and starts[bisect_right(starts, position) - 1] != position

    def end_of(self, position: int) -> int:
        """Return where the text ends that has a token at a position."""
        at = bisect_right(self._starts, position)
        return self._starts[at] if at < len(self._starts) else len(self.tokens)
