"""Lookup rules of other projects, reimplemented from what their code does, for comparison in replays only."""

from collections.abc import Sequence
from typing import Any

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, TableFileError

PRIOR = 0.5
"""These rules have no priors of their own, and are replayed without the gate."""


class _IndexedTexts:
    """Base of lookups within one request: each sequence's text, and the positions where its n-grams ended."""

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.positions: dict[int, dict[tuple[int, ...], int]] = {}

    def open(self, start: SequenceStart) -> None:
        """Index the prompt."""
        self.texts[start.seq] = []
        self.positions[start.seq] = {}
        self.observe(start.seq, start.prompt)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Append tokens and index the n-grams that the rule looks up."""
        raise NotImplementedError

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Learn nothing."""

    def close(self, seq: int) -> None:
        """Forget the sequence."""
        del self.texts[seq], self.positions[seq]


class FixedLookup(_IndexedTexts):
    """Drafts what followed a match of n tokens, for the largest n between longest and shortest that occurs.

    newest: whether the newest occurrence is used, or the earliest. The draft ends where the text ends.
    """

    name = "fixed"

    def __init__(self, longest: int, shortest: int, *, newest: bool = True) -> None:
        super().__init__()
        self.sizes = range(longest, shortest - 1, -1)
        self.newest = newest

    def propose(self, query: DraftQuery) -> Draft:
        """Draft what followed the match. The bucket is n."""
        text, positions = self.texts[query.seq], self.positions[query.seq]
        for size in self.sizes:
            position = positions.get(tuple(text[-size:]))
            if position is not None and len(text) >= size:
                return Draft(text[position : position + query.limit], self.name, size, PRIOR)
        return NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Index the n-grams before each of these tokens.

        The last n-gram of the text is left out, because it would match itself.
        """
        text, positions = self.texts[seq], self.positions[seq]
        for token in tokens:
            for size in self.sizes:
                if len(text) >= size:
                    ngram = tuple(text[-size:])
                    if self.newest or ngram not in positions:
                        positions[ngram] = len(text)
            text.append(token)


class LongCopyLookup(_IndexedTexts):
    """llama.cpp's ngram-simple: the newest occurrence of the last n tokens, and up to m tokens from there.

    It drafts nothing shorter than n tokens, and nothing in a text of n + m + 2 tokens or fewer. The very
    first n-gram is never a match, nor is one that ends right before the last token.
    Source: common/ngram-map.cpp, common_ngram_simple_draft, defaults n = 12, m = 48.
    """

    name = "long-copy"

    def __init__(self, n: int = 12, m: int = 48) -> None:
        super().__init__()
        self.n = n
        self.m = m

    def propose(self, query: DraftQuery) -> Draft:
        """Draft what followed the match, without the last token of the text."""
        text = self.texts[query.seq]
        if len(text) < self.n + self.m + 3:
            return NO_DRAFT
        position = self.positions[query.seq].get(tuple(text[-self.n :]))
        if position is None:
            return NO_DRAFT
        tokens = text[position : min(position + self.m, len(text) - 1)]
        return Draft(tokens[: query.limit], self.name, 0, PRIOR) if len(tokens) >= self.n else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Index the n-gram that ended two tokens ago."""
        text, positions, n = self.texts[seq], self.positions[seq], self.n
        for token in tokens:
            text.append(token)
            end = len(text) - 2
            if end > n:
                positions[tuple(text[end - n : end])] = end


class WipedTableLookup:
    """llama.cpp's ngram-mod: one table for all requests, from the hash of n tokens to the newest next token.

    A draft has at least min_tokens tokens and at most the query's limit. Five drafts in a row with less than
    a quarter accepted wipe the table for all requests. So does a prompt after which more than a quarter of
    the table is occupied.
    Source: common/ngram-mod.cpp and common/speculative.cpp; n = 24, 48 to 64 tokens in docs/speculative.md.
    """

    name = "wiped-table"

    MULTIPLIER = 6364136223846793005
    SIZE = 4 * 1024 * 1024
    CHUNK_TOKENS = 32
    FULL = 0.25
    LOW_ACCEPTANCE = 0.25
    LOW_STREAK = 5

    def __init__(self, n: int = 24, min_tokens: int = 48) -> None:
        self.n = n
        self.min_tokens = min_tokens
        self.table: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.num_learned: dict[int, int] = {}
        self.num_low: dict[int, int] = {}
        self._oldest_weight = pow(self.MULTIPLIER, n, 1 << 64)

    def open(self, start: SequenceStart) -> None:
        """Write the prompt to the table."""
        seq = start.seq
        self.texts[seq] = list(start.prompt)
        self.num_learned[seq] = self.num_low[seq] = 0
        self._learn(seq, len(start.prompt))
        if len(self.table) > self.FULL * self.SIZE:
            self.table.clear()

    def propose(self, query: DraftQuery) -> Draft:
        """Draft token by token from the table."""
        line = self.texts[query.seq][-self.n :]
        if len(line) < self.n:
            return NO_DRAFT
        hash_ = self._hash(line)
        for at in range(query.limit):
            token = self.table.get(hash_ % self.SIZE)
            if token is None:
                break
            hash_ = self._roll(hash_, line[at], token)
            line.append(token)
        tokens = line[self.n :]
        return Draft(tokens, self.name, 0, PRIOR) if len(tokens) >= max(1, self.min_tokens) else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Write new tokens to the table once there are enough of them, except the last one."""
        text = self.texts[seq]
        text += tokens
        if self.num_learned[seq] + self.CHUNK_TOKENS < len(text) - 1:
            self._learn(seq, len(text) - 1)

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Wipe the table after several drafts in a row with low acceptance."""
        if num_accepted >= self.LOW_ACCEPTANCE * num_verified:
            self.num_low[seq] = 0
            return
        self.num_low[seq] += 1
        if self.num_low[seq] == self.LOW_STREAK:
            self.table.clear()
            self.num_low[seq] = self.num_learned[seq] = 0

    def close(self, seq: int) -> None:
        """Forget the sequence, but not the table."""
        del self.texts[seq], self.num_learned[seq], self.num_low[seq]

    def reset(self) -> None:
        """Forget everything."""
        self.table.clear()

    def status(self) -> dict[str, Any]:
        """Return how full the table is."""
        return {"occupied": len(self.table), "occupancy": len(self.table) / self.SIZE}

    def save(self) -> str:
        """Raise TableFileError: there is no file."""
        raise TableFileError("this table is for comparisons only; there is no file")

    load = save

    def _learn(self, seq: int, stop: int) -> None:
        """Write the n-grams that are not written yet and whose next token is before stop."""
        text, n, first = self.texts[seq], self.n, self.num_learned[seq]
        if stop <= n:
            return
        if first < stop - n:
            hash_ = self._hash(text[first : first + n])
            for at in range(first, stop - n):
                self.table[hash_ % self.SIZE] = text[at + n]
                hash_ = self._roll(hash_, text[at], text[at + n])
        self.num_learned[seq] = stop - n

    def _hash(self, tokens: Sequence[int]) -> int:
        hash_ = 0
        for token in tokens:
            hash_ = (hash_ * self.MULTIPLIER + token) % (1 << 64)
        return hash_

    def _roll(self, hash_: int, oldest: int, token: int) -> int:
        return (hash_ * self.MULTIPLIER + token - oldest * self._oldest_weight) % (1 << 64)
