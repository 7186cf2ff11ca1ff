"""Lookups as others do them, written anew from what their code does: for comparisons, never to be served."""

from collections.abc import Sequence
from typing import Any

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, TableFileError

PRIOR = 0.5
"""These rules have no opinion; the gate's would be asked only by mistake."""


class _IndexedTexts:
    """What lookups within one request have in common: each sequence's text, and where its n-grams ended."""

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.places: dict[int, dict[tuple[int, ...], int]] = {}

    def open(self, opening: SequenceStart) -> None:
        """Index the prompt."""
        self.texts[opening.seq] = []
        self.places[opening.seq] = {}
        self.observe(opening.seq, opening.prompt)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Add tokens, and index the ends that the rule looks up."""
        raise NotImplementedError

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """Nothing to learn."""

    def close(self, seq: int) -> None:
        """Forget the sequence."""
        del self.texts[seq], self.places[seq]


class FixedLookup(_IndexedTexts):
    """What followed a match of n tokens, n from longest to shortest; where the text ends, so does the draft.

    newest: whether it is the newest place of those that match for the longest n, or the earliest.
    """

    name = "fixed"

    def __init__(self, longest: int, shortest: int, *, newest: bool = True) -> None:
        super().__init__()
        self.sizes = range(longest, shortest - 1, -1)
        self.newest = newest

    def propose(self, ask: DraftQuery) -> Draft:
        """What followed the match. Its bucket is n."""
        text, places = self.texts[ask.seq], self.places[ask.seq]
        for size in self.sizes:
            place = places.get(tuple(text[-size:]))
            if place is not None and len(text) >= size:
                return Draft(text[place : place + ask.limit], self.name, size, PRIOR)
        return NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Index the ends before these tokens: never the very last, lest it matches itself."""
        text, places = self.texts[seq], self.places[seq]
        for token in tokens:
            for size in self.sizes:
                if len(text) >= size:
                    ngram = tuple(text[-size:])
                    if self.newest or ngram not in places:
                        places[ngram] = len(text)
            text.append(token)


class LongCopyLookup(_IndexedTexts):
    """llama.cpp's ngram-simple: the newest place of the last n tokens, and up to m tokens from there.

    It drafts nothing shorter than n tokens, nor before there are n + m + 2. The very first n-gram counts as
    none, and so does one that ends right before the last token.
    Source: common/ngram-map.cpp, common_ngram_simple_draft, defaults n = 12, m = 48.
    """

    name = "long-copy"

    def __init__(self, n: int = 12, m: int = 48) -> None:
        super().__init__()
        self.n = n
        self.m = m

    def propose(self, ask: DraftQuery) -> Draft:
        """What followed the match, without the last token of the text."""
        text = self.texts[ask.seq]
        if len(text) < self.n + self.m + 3:
            return NO_DRAFT
        place = self.places[ask.seq].get(tuple(text[-self.n :]))
        if place is None:
            return NO_DRAFT
        tokens = text[place : min(place + self.m, len(text) - 1)]
        return Draft(tokens[: ask.limit], self.name, 0, PRIOR) if len(tokens) >= self.n else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Index what ended two tokens ago."""
        text, places, n = self.texts[seq], self.places[seq], self.n
        for token in tokens:
            text.append(token)
            end = len(text) - 2
            if end > n:
                places[tuple(text[end - n : end])] = end


class WipedTableLookup:
    """llama.cpp's ngram-mod: one table for all, from the hash of n tokens to the next one; the newest wins.

    A draft has at least fewest tokens and at most limit. Five drafts in a row of which less than a quarter
    came true wipe the table for everybody, and so does a prompt that leaves more than a quarter of it full.
    Source: common/ngram-mod.cpp and common/speculative.cpp; n = 24, 48 to 64 tokens in docs/speculative.md.
    """

    name = "wiped-table"

    MULTIPLIER = 6364136223846793005
    SIZE = 4 * 1024 * 1024
    CHUNK_TOKENS = 32
    FULL = 0.25
    LOW_ACCEPTANCE = 0.25
    LOW_STREAK = 5

    def __init__(self, n: int = 24, fewest: int = 48) -> None:
        self.n = n
        self.fewest = fewest
        self.table: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.learnt: dict[int, int] = {}
        self.num_low: dict[int, int] = {}
        self._oldest_weight = pow(self.MULTIPLIER, n, 1 << 64)

    def open(self, opening: SequenceStart) -> None:
        """Learn the prompt."""
        seq = opening.seq
        self.texts[seq] = list(opening.prompt)
        self.learnt[seq] = self.num_low[seq] = 0
        self._learn(seq, len(opening.prompt))
        if len(self.table) > self.FULL * self.SIZE:
            self.table.clear()

    def propose(self, ask: DraftQuery) -> Draft:
        """Token after token as the table has it."""
        line = self.texts[ask.seq][-self.n :]
        if len(line) < self.n:
            return NO_DRAFT
        hash_ = self._hash(line)
        for at in range(ask.limit):
            token = self.table.get(hash_ % self.SIZE)
            if token is None:
                break
            hash_ = self._roll(hash_, line[at], token)
            line.append(token)
        tokens = line[self.n :]
        return Draft(tokens, self.name, 0, PRIOR) if len(tokens) >= max(1, self.fewest) else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Learn when there are enough tokens that the table lacks; the last one waits."""
        text = self.texts[seq]
        text += tokens
        if self.learnt[seq] + self.CHUNK_TOKENS < len(text) - 1:
            self._learn(seq, len(text) - 1)

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """Wipe the table after drafts that failed."""
        if accepted >= self.LOW_ACCEPTANCE * offered:
            self.num_low[seq] = 0
            return
        self.num_low[seq] += 1
        if self.num_low[seq] == self.LOW_STREAK:
            self.table.clear()
            self.num_low[seq] = self.learnt[seq] = 0

    def close(self, seq: int) -> None:
        """Forget the sequence, not the table."""
        del self.texts[seq], self.learnt[seq], self.num_low[seq]

    def status(self) -> dict[str, Any]:
        """How full the table is."""
        return {"occupied": len(self.table), "occupancy": len(self.table) / self.SIZE}

    def reset(self) -> None:
        """Forget everything."""
        self.table.clear()

    def save(self) -> str:
        """Raises TableFileError: there is no file."""
        raise TableFileError("this table is for comparisons only; there is no file")

    def load(self) -> str:
        """Raises TableFileError, as save does."""
        raise TableFileError("this table is for comparisons only; there is no file")

    def _learn(self, seq: int, stop: int) -> None:
        """Write the n-grams from where it left off, as far as their followers stand before stop."""
        text, n, first = self.texts[seq], self.n, self.learnt[seq]
        if stop <= n:
            return
        if first < stop - n:
            hash_ = self._hash(text[first : first + n])
            for at in range(first, stop - n):
                self.table[hash_ % self.SIZE] = text[at + n]
                hash_ = self._roll(hash_, text[at], text[at + n])
        self.learnt[seq] = stop - n

    def _hash(self, tokens: Sequence[int]) -> int:
        hash_ = 0
        for token in tokens:
            hash_ = (hash_ * self.MULTIPLIER + token) % (1 << 64)
        return hash_

    def _roll(self, hash_: int, oldest: int, token: int) -> int:
        return (hash_ * self.MULTIPLIER + token - oldest * self._oldest_weight) % (1 << 64)
