"""Lookup rules of other projects, reimplemented from what their code does, for comparison in replays only."""

from collections.abc import Sequence

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart

PRIOR = 0.5
"""These rules have no priors of their own, and are replayed without the gate."""


class FixedLookup:
    """Drafts what followed a match of n tokens, for the largest n between longest and shortest that occurs.

    newest: whether the newest occurrence is used, or the earliest. The draft ends where the text ends.
    is_long: as llama.cpp's ngram-simple, which drafts nothing shorter than n tokens, and nothing in a text of
    n + limit + 2 tokens or fewer; the very first n-gram is never a match, nor is one that ends right before
    the last token, which is never drafted. Source: common/ngram-map.cpp, common_ngram_simple_draft.
    """

    name = "fixed"

    def __init__(self, longest: int, shortest: int, *, newest: bool = True, is_long: bool = False) -> None:
        self.sizes = range(longest, shortest - 1, -1)
        self.newest, self.is_long = newest, is_long
        self.texts: dict[int, list[int]] = {}
        self._positions: dict[int, dict[tuple[int, ...], int]] = {}

    def open(self, start: SequenceStart) -> None:
        """Index the prompt."""
        self.texts[start.seq], self._positions[start.seq] = [], {}
        self.observe(start.seq, start.prompt)

    def propose(self, query: DraftQuery) -> Draft:
        """Draft what followed the match. The bucket is n."""
        text, positions = self.texts[query.seq], self._positions[query.seq]
        for size in self.sizes:
            if len(text) < (size + query.limit + 3 if self.is_long else size):
                continue
            if (position := positions.get(tuple(text[-size:]))) is not None:
                tokens = text[position : min(position + query.limit, len(text) - self.is_long)]
                is_enough = not self.is_long or len(tokens) >= size
                return Draft(tokens, self.name, size, PRIOR) if is_enough else NO_DRAFT
        return NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Index the n-grams before each of these tokens; the text's last n-gram would match itself."""
        text, positions = self.texts[seq], self._positions[seq]
        for token in tokens:
            text.append(token)
            end = len(text) - 1 - self.is_long
            for size in self.sizes:
                ngram = tuple(text[end - size : end])
                if end >= size + self.is_long and (self.newest or ngram not in positions):
                    positions[ngram] = end

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Learn nothing."""

    def close(self, seq: int) -> None:
        """Forget the sequence."""
        del self.texts[seq], self._positions[seq]


class WipedTableLookup:
    """llama.cpp's ngram-mod: one table for all requests, from the hash of n tokens to the newest next token.

    A draft has at least min_tokens tokens and at most the query's limit. Five drafts in a row with less than
    a quarter accepted wipe the table for all requests. So does a prompt after which more than a quarter of
    the table is occupied.
    Source: common/ngram-mod.cpp and common/speculative.cpp; n = 24, 48 to 64 tokens in docs/speculative.md.
    """

    name = "wiped-table"

    MULTIPLIER, SIZE, CHUNK_TOKENS = 6364136223846793005, 4 * 1024 * 1024, 32
    FULL, LOW_ACCEPTANCE, LOW_STREAK = 0.25, 0.25, 5

    def __init__(self, n: int = 24, min_tokens: int = 48) -> None:
        self.n, self.min_tokens = n, min_tokens
        self.table: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.num_learned: dict[int, int] = {}
        self.num_low: dict[int, int] = {}
        self._oldest_weight = pow(self.MULTIPLIER, n, 1 << 64)

    def open(self, start: SequenceStart) -> None:
        """Write the prompt to the table."""
        self.texts[start.seq] = list(start.prompt)
        self.num_learned[start.seq] = self.num_low[start.seq] = 0
        self._learn(start.seq, len(start.prompt))
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
