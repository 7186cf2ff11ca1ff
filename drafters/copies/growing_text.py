"""The tokens of one sequence, prompt and answer, and an index to find its end earlier in the same text."""

from array import array
from collections.abc import Sequence

from reprise.drafters.base import SLICE_TOKENS, Slices, finish
from reprise.drafters.copies.occurrences import LONGEST, MAX_MATCH_TOKENS, Ids, Match, Occurrences, TailHashes

_MIN_CAPACITY = 4096
_MIN_RECALL_TOKENS = 4
_GROW_EVERY = 16  # tokens between two slices of growing, which are done long before there is no room


class GrowingText:
    """A text whose prompt is taken in and indexed in slices, while tokens are appended already.

    prompt: the first tokens; the work of index_tokens() takes them in.
    tokens: all tokens taken in so far; grows in place. index: of these tokens; may lag behind.
    tail: hashes of the text's end.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens: Ids = array("I")
        self.index = Occurrences(self.tokens, _capacity_for(len(prompt)))
        self._growing: Slices | None = None
        self.tail = TailHashes(prompt)
        self._prompt: Sequence[int] = prompt
        # The text's end, and the tokens after the prompt, until all of that is taken in.
        self._end: Ids = array("I", prompt[-MAX_MATCH_TOKENS:])
        self._later: list[int] = []
        self._is_taken = False

    @property
    def end(self) -> Ids:
        """At least the last MAX_MATCH_TOKENS tokens of the text, or all there are."""
        return self.tokens if self._is_taken else self._end

    def take_tokens(self) -> Slices:
        """Return the work of taking in the rest of the prompt, without adding it to the index."""
        while not self._is_taken:
            yield self._take_slice()

    def _take_slice(self) -> int:
        """Take in the next tokens of the prompt; return how many."""
        part = self._prompt[len(self.tokens) : len(self.tokens) + SLICE_TOKENS]
        self.tokens += array("I", part)
        if len(self.tokens) == len(self._prompt):
            self._is_taken, self._prompt = True, ()
            self.tokens.extend(self._later)
            self._later = []
            if (capacity := _capacity_for(len(self.tokens))) > self.index.capacity:
                # The answer is long already, so this begins anew.
                self.index = Occurrences(self.tokens, capacity)
        return len(part)

    def index_tokens(self) -> Slices:
        """Return the work of taking in the rest of the prompt, and of adding all tokens to the index."""
        yield from self.index.touch()
        while True:
            if not self._is_taken:
                self._take_slice()
            if not (num_tokens := self._index_slice(self.index)):
                return
            yield num_tokens

    def _index_slice(self, index: Occurrences) -> int:
        """Add the next tokens to an index that is behind; return how many."""
        start, tokens = index.end, self.tokens
        num_tokens = min(len(tokens) - start, SLICE_TOKENS)
        index.extend(tokens[start : start + num_tokens], tokens[max(0, start - LONGEST) : start])
        return num_tokens

    def _grow(self) -> Slices:
        """Return the work of building an index with twice the room, which then takes this one's place."""
        larger = Occurrences(self.tokens, 2 * self.index.capacity)
        yield from larger.touch()
        while num_tokens := self._index_slice(larger):
            yield num_tokens
        self.index, self._growing = larger, None

    def append(self, token: int) -> None:
        """Append a token."""
        hashes = self.tail.append(token)
        if not self._is_taken:
            self._later.append(token)
            self._end.append(token)
            del self._end[:-MAX_MATCH_TOKENS]
            return
        index, tokens = self.index, self.tokens
        tokens.append(token)
        # An index that is behind gets to this token later.
        if index.end == len(tokens) - 1:
            index.append(hashes)
        if len(tokens) >= index.capacity - index.capacity // 8:
            self._growing = self._growing or self._grow()
            if len(tokens) + 2 >= index.capacity:
                finish(self._growing)
            elif len(tokens) % _GROW_EVERY == 0:
                next(self._growing, None)

    def find_earlier(self) -> Match | None:
        """Return the longest earlier occurrence of the text's end, in the indexed part of the text."""
        if self.index.end == len(self.tokens) and self._is_taken:
            return self.index.find_earlier(self.tokens)
        return self.index.find(self.tail.hashes, self.end)

    def recall(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens that last followed the text's end with these tokens behind it; () if none did."""
        end = (self.end[-MAX_MATCH_TOKENS:] + array("I", tokens))[-MAX_MATCH_TOKENS:]
        match = self.index.find(TailHashes(end).hashes, end)
        if match is None or match.length < _MIN_RECALL_TOKENS:
            return ()
        return self.tokens[match.position : match.position + MAX_MATCH_TOKENS]


def _capacity_for(num_tokens: int) -> int:
    """Return the capacity of an index of a text that may grow by at least a quarter."""
    return max(_MIN_CAPACITY, 1 << (num_tokens + num_tokens // 4).bit_length())
