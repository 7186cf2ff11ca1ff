"""Drafts from the shared table: what followed the last n tokens when they were last seen, in any request.

The table (ngram_mod_table.py) is shared; here is what one request has of its own: where it stands, what it
has not told the table yet, and how its drafts fared. A request whose drafts fail cools down alone.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from drafters.ngram_mod_table import NgramModTable
from drafters.ngram_mod_tables import NgramModTables

NAME = "ngram-mod"

CHUNK_TOKENS = 32
"""An answer reaches the table once it is so many tokens ahead, and when it ends."""

LOW_ACCEPTANCE = 0.5
LOW_STREAK = 3
"""So many drafts in a row, each with less of it accepted than that, cool a request down."""

FIRST_COOLING = 64
LONGEST_COOLING = 4096
"""Tokens for which a request then proposes nothing; each time twice as many."""

RECOVERY_RUN = 8
"""So many tokens in a row that the table would have drafted rightly end it early."""

BUCKET_STARTS = (1, 8, 32)
"""Runs of tokens that the table knew beforehand at which the next bucket begins: 0, 1-7, 8-31, 32+."""

PRIORS = (0.70, 0.80, 0.90, 0.95)
"""Chance that a drafted token is right, by bucket, until the gate has learned better."""


class NgramModDrafter:
    """Drafts for all requests in one vocabulary. Shared memory: status, reset, save and load are of it.

    memory: the tables; drafters of models with one vocabulary may share it.
    """

    name = NAME

    def __init__(self, memory: NgramModTables) -> None:
        self.memory = memory
        self._cursors: dict[int, _Cursor] = {}

    @property
    def num_open(self) -> int:
        """Sequences that are open."""
        return len(self._cursors)

    def open(self, opening: SequenceStart) -> None:
        """Write the prompt to the tenant's table."""
        table = self.memory.table(opening.tenant)
        table.learn(opening.prompt)
        ngram = list(opening.prompt[-table.n :])
        self._cursors[opening.seq] = _Cursor(table, deque(ngram, table.n), table.hash(ngram))

    def propose(self, query: DraftQuery) -> Draft:
        """Up to limit tokens, read from the table one after the other; none while the request cools down."""
        cursor = self._cursors[query.seq]
        tokens = cursor.draft(query.limit)
        if not tokens:
            return NO_DRAFT
        bucket = sum(cursor.run >= start for start in BUCKET_STARTS)
        return Draft(tokens, NAME, bucket, PRIORS[bucket])

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Move on, and tell the table from time to time."""
        cursor = self._cursors[seq]
        for token in tokens:
            cursor.advance(token)

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """Cool the request down if its drafts fail one after the other."""
        self._cursors[seq].judge(accepted / offered)

    def close(self, seq: int) -> None:
        """Tell the table the rest of what was said, and forget the sequence; also one whose open raised."""
        if (cursor := self._cursors.pop(seq, None)) is not None:
            cursor.flush()

    def is_cooling(self, seq: int) -> bool:
        """Whether this sequence proposes nothing for now because its drafts failed."""
        return self._cursors[seq].num_cooling > 0

    def status(self) -> dict[str, Any]:
        """See NgramModTables.status."""
        return self.memory.status()

    def reset(self) -> None:
        """Forget everything, also what open requests have not told the table yet."""
        self._drop_pending()
        self.memory.reset()

    def save(self) -> str:
        """See NgramModTables.save."""
        return self.memory.save()

    def load(self) -> str:
        """See NgramModTables.load."""
        said = self.memory.load()
        self._drop_pending()
        return said

    def _drop_pending(self) -> None:
        for cursor in self._cursors.values():
            cursor.pending.clear()


@dataclass(slots=True)
class _Cursor:
    """Where one request stands in its table.

    ngram: its last tokens, at most n; hash: of them. pending: (hash, token) pairs that the table lacks.
    run: tokens in a row, up to the last, that the table knew beforehand.
    num_low: failed drafts in a row. num_cooling: tokens left without a draft; next_cooling: of next time.
    """

    table: NgramModTable
    ngram: deque[int]
    hash: int
    pending: list[tuple[int, int]] = field(default_factory=list)
    run: int = 0
    num_low: int = 0
    num_cooling: int = 0
    next_cooling: int = FIRST_COOLING

    def draft(self, limit: int) -> list[int]:
        if self.num_cooling or len(self.ngram) < self.table.n:
            return []
        return self.table.continuation(self.ngram, self.hash, limit)

    def advance(self, token: int) -> None:
        table, ngram = self.table, self.ngram
        oldest = 0
        if len(ngram) == table.n:
            self.run = self.run + 1 if table.token(table.slot(self.hash)) == token else 0
            self.pending.append((self.hash, token))
            oldest = ngram[0]
        self.hash = table.roll(self.hash, oldest, token)
        ngram.append(token)
        if len(self.pending) > CHUNK_TOKENS:
            self.flush()
        if self.num_cooling:
            self.num_cooling -= 1
            if self.run >= RECOVERY_RUN:
                self.num_cooling, self.next_cooling = 0, FIRST_COOLING

    def judge(self, acceptance: float) -> None:
        if acceptance >= LOW_ACCEPTANCE:
            self.num_low, self.next_cooling = 0, FIRST_COOLING
            return
        self.num_low += 1
        if self.num_low == LOW_STREAK:
            self.num_low = 0
            self.num_cooling = self.next_cooling
            self.next_cooling = min(2 * self.next_cooling, LONGEST_COOLING)

    def flush(self) -> None:
        if self.pending:
            self.table.put(self.pending)
            self.pending = []
