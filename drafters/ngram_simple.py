"""Prompt lookup: the longest n-gram that ends a sequence and stood in it before, and what followed it.

Source: Saxena, "Prompt Lookup Decoding", 2023; there the text is scanned, here it is indexed.
"""

from bisect import bisect_right
from collections.abc import Sequence

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from drafters.context_trie import ContextTrie

NAME = "ngram-simple"

BUCKET_STARTS = (3, 4, 6, 9, 16)
"""Match lengths at which the next bucket begins: <3, 3, 4-5, 6-8, 9-15, 16 and more."""

PRIORS = (0.50, 0.70, 0.75, 0.85, 0.90, 0.95)
"""Chance that a drafted token is right, by bucket, until the gate has learned better."""


class NgramSimpleDrafter:
    """Looks a sequence up in itself, prompt and answer alike.

    ngram_size_min, ngram_size_max: shortest and longest match in tokens, 1 <= min <= max.
    Raises ValueError for others.
    """

    name = NAME

    def __init__(self, ngram_size_min: int = 2, ngram_size_max: int = 16) -> None:
        if not 1 <= ngram_size_min <= ngram_size_max:
            raise ValueError(
                f"ngram sizes must be 1 <= min <= max; got min {ngram_size_min}, max {ngram_size_max}"
            )
        self.ngram_size_min = ngram_size_min
        self.ngram_size_max = ngram_size_max
        self._texts: dict[int, ContextTrie] = {}

    @property
    def num_open(self) -> int:
        """Sequences that are open."""
        return len(self._texts)

    def open(self, opening: SequenceStart) -> None:
        """Index the prompt."""
        text = ContextTrie(self.ngram_size_max)
        text.extend(opening.prompt)
        self._texts[opening.seq] = text

    def propose(self, query: DraftQuery) -> Draft:
        """What followed the newest of the longest matches: limit tokens, or none without a match."""
        text = self._texts[query.seq]
        if text.length < self.ngram_size_min:
            return NO_DRAFT
        bucket = bisect_right(BUCKET_STARTS, text.length)
        return Draft(text.continuation(query.limit), NAME, bucket, PRIORS[bucket])

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Append to the text and find its new end's match."""
        self._texts[seq].extend(tokens)

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """Nothing to learn: what was committed says it all."""

    def close(self, seq: int) -> None:
        """Forget the sequence; also one whose open raised."""
        self._texts.pop(seq, None)
