"""Draft from the shared n-gram table: what last followed the same n tokens, in any request.

The tables are in table.py and shared between requests. This file keeps the state of each request:
its last n tokens, the tokens not written to the table yet, and how its drafts were verified. A request whose
drafts are mostly rejected stops drafting for a while (it cools down) without affecting other requests.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reprise.drafters.base import NO_DRAFT, SLICE_TOKENS, Draft, DraftQuery, SequenceStart, Slices, finish
from reprise.drafters.ngram_mod.table import NgramModTable, NgramModTables

NAME = "ngram-mod"

CHUNK_TOKENS = 32
"""An answer is written to the table when more than this many tokens are unwritten, and when it ends."""

LOW_ACCEPTANCE = 0.5
LOW_STREAK = 3
"""A request cools down after LOW_STREAK drafts in a row with an acceptance rate below LOW_ACCEPTANCE."""

FIRST_COOLDOWN = 64
MAX_COOLDOWN = 4096
"""Length of a request's first cooldown in tokens; each further one is twice as long, up to the maximum."""

RECOVERY_RUN = 8
"""A cooldown ends early after this many tokens in a row that the table predicted correctly."""

BUCKET_STARTS = (1, 8, 32)
"""Lengths of the run of correctly predicted tokens at which the next bucket starts: 0, 1-7, 8-31, 32+."""

PRIORS = (0.70, 0.80, 0.90, 0.95)
"""Expected acceptance rate per token, by bucket."""


class NgramModDrafter:
    """Drafts from the n-gram tables of one vocabulary. As a SharedTable it manages those tables.

    tables: may be shared with other drafters whose models have the same vocabulary.
    """

    name = NAME

    def __init__(self, tables: NgramModTables) -> None:
        self.tables = tables
        self._sequences: dict[int, _Sequence] = {}
        self._num_forgotten = 0

    @property
    def num_open(self) -> int:
        """Number of open sequences."""
        return len(self._sequences)

    def open(self, start: SequenceStart) -> Slices:
        """Return the work of writing the prompt to the tenant's table."""
        table = self.tables.table(start.tenant)
        ngram = list(start.prompt[-table.n :])
        state = _Sequence(table, start.prompt, deque(ngram, table.n), table.hash(ngram))
        self._sequences[start.seq] = state
        return self._write(state.write_prompt(), self._num_forgotten)

    def propose(self, query: DraftQuery) -> Draft:
        """Draft up to limit tokens, each looked up by the n tokens before it; none during a cooldown."""
        state = self._sequences[query.seq]
        tokens = state.draft(query.limit)
        if not tokens:
            return NO_DRAFT
        bucket = sum(state.run >= start for start in BUCKET_STARTS)
        return Draft(tokens, NAME, bucket, PRIORS[bucket])

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Append committed tokens, and write them to the table in chunks."""
        state = self._sequences[seq]
        for token in tokens:
            state.advance(token)

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Start a cooldown if several drafts in a row had a low acceptance rate."""
        self._sequences[seq].note_acceptance(num_accepted / num_verified)

    def close(self, seq: int) -> Slices | None:
        """Free the sequence, even if its open raised; return the work of writing its remaining tokens."""
        state = self._sequences.pop(seq, None)
        if state is None:
            return None
        return self._write(itertools.chain(state.write_prompt(), state.flush()), self._num_forgotten)

    def _write(self, slices: Slices, num_forgotten: int) -> Slices:
        """Do this work until the next reset, which also drops unwritten tokens."""
        while self._num_forgotten == num_forgotten and (num_tokens := next(slices, None)) is not None:
            yield num_tokens

    def is_cooling_down(self, seq: int) -> bool:
        """Return whether this sequence drafts nothing for now, after too many rejected drafts."""
        return self._sequences[seq].num_cooling > 0

    def status(self) -> dict[str, Any]:
        """Return the counts of the tables; see NgramModTables.status."""
        return self.tables.status()

    def reset(self) -> Slices:
        """Forget everything, including the tokens of open requests that are not written yet.

        Returns the work of freeing memory.
        """
        self._drop_unwritten()
        return self.tables.reset()

    def save(self) -> str:
        """Write the tables to their file; see NgramModTables.save."""
        return self.tables.save()

    def load(self) -> str:
        """Read the tables from their file; see NgramModTables.load."""
        summary = self.tables.load()
        self._drop_unwritten()
        return summary

    def _drop_unwritten(self) -> None:
        self._num_forgotten += 1
        for state in self._sequences.values():
            state.unwritten.clear()
            state.prompt = ()


@dataclass(slots=True)
class _Sequence:
    """An open sequence.

    prompt: num_learned of its tokens are in the table; empty once all are.
    ngram: its last tokens, at most n. hash: of ngram.
    unwritten: (hash, token) pairs of the answer that are not in the table yet.
    run: number of consecutive tokens, up to the last, that the table predicted correctly.
    num_low: consecutive drafts with a low acceptance rate.
    num_cooling: tokens left of the present cooldown. next_cooldown: length of the next one.
    """

    table: NgramModTable
    prompt: Sequence[int]
    ngram: deque[int]
    hash: int
    num_learned: int = 0
    unwritten: list[tuple[int, int]] = field(default_factory=list)
    run: int = 0
    num_low: int = 0
    num_cooling: int = 0
    next_cooldown: int = FIRST_COOLDOWN

    def write_prompt(self) -> Slices:
        n = self.table.n
        if len(self.prompt) > n:
            yield from self.table.allocate()
        while len(self.prompt) > self.num_learned + n:
            part = self.prompt[self.num_learned : self.num_learned + n + SLICE_TOKENS]
            self.table.learn(part)
            self.num_learned += SLICE_TOKENS
            yield len(part) - n
        self.prompt = ()

    def draft(self, limit: int) -> list[int]:
        if self.num_cooling or len(self.ngram) < self.table.n:
            return []
        return self.table.continuation(self.ngram, self.hash, limit)

    def advance(self, token: int) -> None:
        table, ngram = self.table, self.ngram
        oldest = 0
        if len(ngram) == table.n:
            self.run = self.run + 1 if table.token(table.slot(self.hash)) == token else 0
            self.unwritten.append((self.hash, token))
            oldest = ngram[0]
        self.hash = table.roll(self.hash, oldest, token)
        ngram.append(token)
        # The newest token wins, so the prompt is written first.
        if len(self.unwritten) > CHUNK_TOKENS and not self.prompt:
            finish(self.flush())
        if self.num_cooling:
            self.num_cooling -= 1
            if self.run >= RECOVERY_RUN:
                self.num_cooling, self.next_cooldown = 0, FIRST_COOLDOWN

    def note_acceptance(self, rate: float) -> None:
        if rate >= LOW_ACCEPTANCE:
            self.num_low, self.next_cooldown = 0, FIRST_COOLDOWN
            return
        self.num_low += 1
        if self.num_low == LOW_STREAK:
            self.num_low = 0
            self.num_cooling = self.next_cooldown
            self.next_cooldown = min(2 * self.next_cooldown, MAX_COOLDOWN)

    def flush(self) -> Slices:
        while pairs := self.unwritten[:SLICE_TOKENS]:
            hashes, tokens = zip(*pairs, strict=True)
            self.table.put(np.array(hashes, np.uint64), np.array(tokens, np.int32))
            del self.unwritten[:SLICE_TOKENS]
            yield len(pairs)
