"""Read ahead: compute prompts that are expected next, while nothing else is to be done."""

import logging
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from time import perf_counter

from reprise.engine.batch.batch import EngineStats
from reprise.engine.batch.sequence import Prefill, PrefixSearch, Sequence, Timing
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.scheduler.draft_prefiller import DraftPrefiller
from reprise.engine.scheduler.prefixes import Prefixes
from reprise.engine.scheduler.request_queue import Prefiller

log = logging.getLogger("reprise.engine")

MIN_TOKENS = 32
"""A prompt that lacks fewer tokens is not read ahead."""

CHUNK_SHARE = 0.25
"""A chunk's share of the time that one of a lone prompt may take: 0.25 s, or a plain step if that is longer.
A request waits for so long."""

KEPT_TOKENS = 4096
"""What is read is copied into the prefix cache at least this often, so that a request that arrives waits for
few copies. Not if the model's caches have state, which would be copied each time."""

MAX_WAITING = 4
"""Prompts that wait to be read. The oldest are forgotten."""

MAX_REMEMBERED = 32
"""Texts that were read ahead and that no prompt has used to their ends. The oldest count as wasted."""


@dataclass(eq=False, slots=True)
class _Read:
    """The tokens [start, len(key)) of a text, which were read ahead and not used yet."""

    key: TextKey
    start: int


class ReadAhead:
    """Computes expected prompts chunk by chunk, and keeps them as prefixes. Used by the engine's thread only.

    A prompt is read only if the prefix cache may hold it, and memory has room beside all cached prefixes.
    """

    def __init__(
        self,
        prefixes: Prefixes,
        prefiller: Prefiller,
        draft_prefiller: DraftPrefiller | None,
        memory_budget: MemoryBudget,
        stats: EngineStats,
    ) -> None:
        self._prefixes, self._prefiller, self._draft_prefiller = prefixes, prefiller, draft_prefiller
        self._memory_budget, self._stats = memory_budget, stats
        self._waiting: deque[Sequence] = deque(maxlen=MAX_WAITING)
        self._reading: Sequence | None = None
        self._reads: deque[_Read] = deque()

    def expect(self, sequences: SequenceOf[Sequence]) -> None:
        """Read these prompts when there is time, the first one first, and before those expected earlier."""
        if self._prefixes.cache is not None:
            for one in sequences:
                _reset(one)
            self._waiting.extendleft(reversed(sequences))

    def advance(self, rows: SequenceOf[Rows]) -> bool:
        """Compute a chunk of an expected prompt, and wait for it; return whether more may be left.

        Nothing else may be in flight. rows: of each model; they are empty.
        """
        start = perf_counter()
        try:
            if self._reading is None and not self._begin(rows):
                return False
            assert self._reading
            if not self._memory_budget.make_room((), [self._reading], rows):
                self._forget(rows)
            else:
                self._prefiller.read(self._reading, CHUNK_SHARE)
                if self._draft_prefiller:
                    self._draft_prefiller.read(self._reading)
                if self._reading.num_to_prefill == 0:
                    self.stop(rows)
                elif not self._prefixes.needs_state:
                    num_kept = self._prefixes.count_kept(self._reading)
                    if self._reading.prefill.num_computed - num_kept >= KEPT_TOKENS:
                        self._prefixes.keep_prefill(self._reading)
        # No request depends on it.
        except Exception:
            log.warning("a prompt could not be read ahead", exc_info=True)
            self._prefixes.drop_copies()
            self._forget(rows)
        finally:
            self._stats.read_ahead_s += perf_counter() - start
            self._stats.num_to_read = self._reading.num_to_prefill if self._reading else 0
        return bool(self._reading or self._waiting)

    def stop(self, rows: SequenceOf[Rows]) -> None:
        """Keep what is computed of the prompt that is being read, and free its caches.

        If something is left, the prompt goes on being expected.
        """
        if (sequence := self._reading) is None:
            return
        start, self._stats.num_to_read = sequence.prefix.num_cached, 0
        try:
            self._prefixes.keep_prefill(sequence)
            if self._draft_prefiller:
                self._draft_prefiller.keep_read(sequence)
            if (end := self._prefixes.count_usable(sequence)) > start:
                self._stats.num_read_ahead += end - start
                self._remember(_Read(sequence.text_key(end), start))
            if sequence.num_to_prefill:
                self._waiting.appendleft(sequence)
        except Exception:
            log.warning("a prompt that was read ahead could not be kept", exc_info=True)
        _reset(sequence)
        self._forget(rows)

    def note_admitted(self, sequence: Sequence) -> None:
        """Count how much of a newly admitted sequence's cached prefix was read ahead."""
        key, counted = sequence.text_key(sequence.prefix.num_cached), 0
        for read in sorted(self._reads, key=lambda one: one.start):
            if (end := key.count_equal(read.key)) > read.start:
                # What was dropped, and read anew, counts once.
                num_used = max(0, end - max(read.start, counted))
                sequence.prefix.num_read_ahead += num_used
                self._stats.num_read_ahead_used += num_used
                self._stats.num_read_ahead_wasted += end - read.start - num_used
                read.start, counted = end, max(counted, end)
                if end == len(read.key):
                    self._reads.remove(read)
        if counted and self._prefixes.needs_state:
            # Files get its state when this answer has ended.
            sequence.prefix.unsaved.append(len(key))

    def _begin(self, rows: SequenceOf[Rows]) -> bool:
        """Begin to read the next prompt that lacks enough tokens and fits; return whether there is one."""
        while self._waiting:
            sequence = self._waiting.popleft()
            # Not the usable part: a request may have computed all of it, and kept no state at its end.
            if sequence.num_to_prefill - self._prefixes.count_kept(sequence) < MIN_TOKENS:
                continue
            if self._memory_budget.copy_bytes(len(sequence.tokens)) > self._prefixes.budget_bytes:
                continue
            if not self._memory_budget.has_room_for(sequence, self._prefixes.count_usable(sequence)):
                continue
            self._reading = sequence
            sequence.admit(*self._prefixes.find(sequence, (), rows[0], ()))
            self._prefiller.prepare(sequence)
            if self._draft_prefiller:
                self._draft_prefiller.begin_to_read(sequence)
            return True
        return False

    def _forget(self, rows: SequenceOf[Rows]) -> None:
        self._reading = None
        self._prefiller.device.clear()
        self._memory_budget.make_room((), (), rows)

    def _remember(self, read: _Read) -> None:
        self._reads.append(read)
        if len(self._reads) > MAX_REMEMBERED:
            oldest = self._reads.popleft()
            self._stats.num_read_ahead_wasted += len(oldest.key) - oldest.start


def _reset(sequence: Sequence) -> None:
    """Let a sequence be admitted anew. It logs no progress."""
    sequence.prefill, sequence.prefix = Prefill(), PrefixSearch()
    sequence.timing = Timing(prompt_logged_s=float("inf"))
