"""Prompt lookup: draft what followed the longest earlier occurrence of the sequence's end.

Source: Saxena, "Prompt Lookup Decoding", 2023. The original scans the text; this keeps an index.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, Slices
from drafters.context_trie import ContextTrie

NAME = "ngram-simple"

BUCKET_STARTS = (3, 4, 6, 9, 16)
"""Match lengths at which the next bucket starts: <3, 3, 4-5, 6-8, 9-15, 16 and more."""

PRIORS = (0.50, 0.70, 0.75, 0.85, 0.90, 0.95)
"""Expected acceptance rate per token, by bucket."""


SLICE_TOKENS = 32
"""Tokens added to the trie in one slice: up to 12 microseconds each."""


@dataclass(slots=True)
class _Sequence:
    """An open sequence.

    text: of which num_read tokens are added. unread: its prompt and, until all of that is added, its answer.
    """

    text: ContextTrie
    unread: list[Sequence[int]] = field(default_factory=list)
    num_read: int = 0

    def read(self) -> Slices:
        while self.unread:
            part = self.unread[0][self.num_read : self.num_read + SLICE_TOKENS]
            self.num_read += len(part)
            self.text.extend(part)
            if self.num_read == len(self.unread[0]):
                del self.unread[0]
                self.num_read = 0
            yield len(part)


class NgramSimpleDrafter:
    """Looks up the end of each sequence in its own prompt and answer.

    ngram_size_min, ngram_size_max: shortest and longest match in tokens, 1 <= min <= max.
    Raises ValueError for other values.
    """

    name = NAME

    def __init__(self, ngram_size_min: int = 2, ngram_size_max: int = 16) -> None:
        if not 1 <= ngram_size_min <= ngram_size_max:
            raise ValueError(
                f"ngram sizes must be 1 <= min <= max; got min {ngram_size_min}, max {ngram_size_max}"
            )
        self.ngram_size_min = ngram_size_min
        self.ngram_size_max = ngram_size_max
        self._sequences: dict[int, _Sequence] = {}

    @property
    def num_open(self) -> int:
        """Number of open sequences."""
        return len(self._sequences)

    def open(self, start: SequenceStart) -> Slices:
        """Return the work of indexing the prompt. Nothing is drafted before that is done."""
        state = self._sequences[start.seq] = _Sequence(ContextTrie(self.ngram_size_max), [start.prompt])
        return state.read()

    def propose(self, query: DraftQuery) -> Draft:
        """Draft what followed the newest of the longest matches: limit tokens, or none without a match."""
        state = self._sequences[query.seq]
        text = state.text
        if text.length < self.ngram_size_min or state.unread:
            return NO_DRAFT
        bucket = bisect_right(BUCKET_STARTS, text.length)
        return Draft(text.continuation(query.limit), NAME, bucket, PRIORS[bucket])

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Append tokens to the text and find the match of its new end."""
        state = self._sequences[seq]
        if state.unread:
            state.unread.append(tokens)
        else:
            state.text.extend(tokens)

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: the committed tokens are all that matters here."""

    def close(self, seq: int) -> Slices | None:
        """Return the work of freeing the sequence, even if its open raised."""
        state = self._sequences.pop(seq, None)
        return None if state is None else state.text.free()
