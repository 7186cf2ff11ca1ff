"""The sequences that wait for a row, and the order in which they are admitted."""

from collections import deque
from collections.abc import Collection, Iterable

from reprise.config.settings import Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.events import Failed
from reprise.engine.interface.stations import station
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.scheduler.prefiller import Prefiller
from reprise.engine.scheduler.prefix_lookup import PrefixLookup

MAX_OVERTAKEN = 16
"""How many smaller sequences may overtake one that does not fit into memory; then all wait for it."""

LONG_PROMPT_TOKENS = 256
"""A longer prompt counts as long: not all rows may prefill such prompts."""


class RequestQueue:
    """Admits waiting sequences to prefill, first come first served except as admit() says.

    waiting: in the order of their submission.
    only: if not None, no other sequence may be admitted.
    """

    def __init__(
        self,
        settings: Settings,
        memory_budget: MemoryBudget,
        prefix_lookup: PrefixLookup,
        prefiller: Prefiller,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.only: Collection[Sequence] | None = None
        self.memory_budget = memory_budget
        self.prefix_lookup = prefix_lookup
        self.prefiller = prefiller
        self._settings = settings

    def end_waiting(self, failed: Failed) -> None:
        """End all sequences that wait for a row."""
        for sequence in self.waiting:
            sequence.fail(failed)

    def drop_ended(self) -> None:
        """Forget sequences that ended while they waited or prefilled."""
        self.prefiller.drop_ended()
        if self.waiting and any(s.ended for s in self.waiting):
            self.waiting = deque(s for s in self.waiting if not s.ended)

    @station("admission")
    def admit(self, members: list[Sequence], rows: Rows) -> None:
        """Admit waiting sequences, in order, while rows and memory last.

        Three kinds of sequences let later ones overtake them: one that waits until another has prefilled the
        prefix that both share; one with a long prompt while half of the rows prefill long prompts, so that
        short ones still find a row; and, up to MAX_OVERTAKEN times, one that does not fit into memory.

        members, rows: the sequences that decode, and their rows.
        """
        too_large: list[Sequence] = []
        may_be_long = self._may_begin_long()
        for sequence in list(self.waiting):
            prefilling = self.prefiller.prefilling
            num_running = len(members) + len(prefilling)
            if num_running >= self._settings.max_rows:
                return
            if self.only is not None and sequence not in self.only:
                continue
            if self.prefix_lookup.is_loading(sequence, may_wait=not num_running):
                continue
            if self.prefix_lookup.awaits(sequence, prefilling):
                continue
            if not may_be_long and self._is_long(sequence):
                continue
            if not self.memory_budget.may_begin(sequence, members, prefilling):
                too_large.append(sequence)
                if sequence.num_overtaken >= MAX_OVERTAKEN:
                    return
                continue
            for overtaken in too_large:
                overtaken.num_overtaken += 1
            self.prefiller.finish_keeping()
            try:
                sequence.admit(*self.prefix_lookup.find(sequence, members, rows, prefilling))
                self.prefiller.begin(sequence)
            except Exception as fault:
                sequence.fail_with(fault)
            # Only now: if the engine dies meanwhile, the sequence must still be found.
            self.waiting.remove(sequence)
            may_be_long = self._may_begin_long()

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """Put running sequences back into the queue, at their old places, unless they have ended."""
        running = [s for s in sequences if not s.ended]
        for sequence in running:
            sequence.restart()
        self.waiting = deque(sorted([*running, *self.waiting], key=lambda s: s.timing.submitted_at))

    def _may_begin_long(self) -> bool:
        """Whether fewer than half of the rows prefill long prompts, so that another one may begin."""
        num_long = sum(self._is_long(s) for s in self.prefiller.prefilling)
        return num_long < max(1, self._settings.max_rows // 2)

    def _is_long(self, sequence: Sequence) -> bool:
        return sequence.num_to_prefill > min(LONG_PROMPT_TOKENS, self._settings.prefill_chunk_tokens)
