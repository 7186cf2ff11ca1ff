"""Count what the engine does. The engine's thread writes; any thread may read."""

from bisect import bisect_left
from itertools import accumulate
from time import perf_counter

from reprise.engine.interface.status import GAP_BOUNDS_S, EngineCounts


class EngineStats:
    """Counts since the engine started.

    num_failed_steps: steps that raised.
    num_preemptions: sequences that were put back into the queue to free memory.
    """

    def __init__(self) -> None:
        self.num_failed_steps = 0
        self.num_preemptions = 0
        self._gaps = [0] * (len(GAP_BOUNDS_S) + 1)
        self._gap_sum_s = 0.0

    def add_tokens(self, num_tokens: int, last_at: float) -> float:
        """Count one sequence's tokens of a step by the time since its previous token; return the time now.

        num_tokens: tokens committed by the step, >= 1.
        last_at: when the sequence's previous token was committed, by perf_counter(); 0 if it had none.
        Returns perf_counter(), to be the next last_at.
        """
        now = perf_counter()
        if last_at:
            self._gaps[bisect_left(GAP_BOUNDS_S, now - last_at)] += 1
            self._gap_sum_s += now - last_at
        # Tokens of one step are committed together, with gaps of 0.
        self._gaps[0] += num_tokens - 1
        return now

    def counts(self) -> EngineCounts:
        """Return all counts."""
        return EngineCounts(
            num_failed_steps=self.num_failed_steps,
            num_preemptions=self.num_preemptions,
            gaps_up_to=tuple(accumulate(self._gaps)),
            gap_sum_s=self._gap_sum_s,
        )
