"""Prompt lookup: draft what followed the longest earlier occurrence of the sequence's end.

Source: Saxena, "Prompt Lookup Decoding", 2023. The original scans the text; this keeps an index.
"""

from bisect import bisect_right
from collections.abc import Sequence

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from drafters.context_trie import ContextTrie

NAME = "ngram-simple"

BUCKET_STARTS = (3, 4, 6, 9, 16)
"""Match lengths at which the next bucket starts: <3, 3, 4-5, 6-8, 9-15, 16 and more."""

PRIORS = (0.50, 0.70, 0.75, 0.85, 0.90, 0.95)
"""Expected acceptance rate per token, by bucket."""


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
        self._texts: dict[int, ContextTrie] = {}

    @property
    def num_open(self) -> int:
        """Number of open sequences."""
        return len(self._texts)

    def open(self, start: SequenceStart) -> None:
        """Index the prompt."""
        text = ContextTrie(self.ngram_size_max)
        text.extend(start.prompt)
        self._texts[start.seq] = text

    def propose(self, query: DraftQuery) -> Draft:
        """Draft what followed the newest of the longest matches: limit tokens, or none without a match."""
        text = self._texts[query.seq]
        if text.length < self.ngram_size_min:
            return NO_DRAFT
        bucket = bisect_right(BUCKET_STARTS, text.length)
        return Draft(text.continuation(query.limit), NAME, bucket, PRIORS[bucket])

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Append tokens to the text and find the match of its new end."""
        self._texts[seq].extend(tokens)

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: the committed tokens are all that matters here."""

    def close(self, seq: int) -> None:
        """Free the sequence, even if its open raised."""
        self._texts.pop(seq, None)
