"""What the engine counts while it works. Written on its thread, read on any."""

from bisect import bisect_left
from itertools import accumulate
from time import perf_counter

import mlx.core as mx

from engine.request import GAP_BOUNDS_S, EngineCounts


class EngineStats:
    """Counts since the engine's start.

    num_failed_steps: steps that raised. num_preemptions: rows that had to make room and began again later.
    num_stalls: times that nothing went on while work was there.
    """

    def __init__(self) -> None:
        self.num_failed_steps = 0
        self.num_preemptions = 0
        self.num_stalls = 0
        self._gaps = [0] * (len(GAP_BOUNDS_S) + 1)
        self._gap_sum_s = 0.0

    def add_tokens(self, num_tokens: int, last_at: float) -> float:
        """A step brought a sequence tokens: count the time since its last one, and return the time now.

        last_at: when that came, by perf_counter(); 0 if these are its first.
        """
        now = perf_counter()
        if last_at:
            self._gaps[bisect_left(GAP_BOUNDS_S, now - last_at)] += 1
            self._gap_sum_s += now - last_at
        # Tokens of one step have no time between them.
        self._gaps[0] += num_tokens - 1
        return now

    def counts(self) -> EngineCounts:
        """All of it, with the memory that MLX holds now."""
        return EngineCounts(
            num_failed_steps=self.num_failed_steps,
            num_preemptions=self.num_preemptions,
            num_stalls=self.num_stalls,
            gaps_up_to=tuple(accumulate(self._gaps)),
            gap_sum_s=self._gap_sum_s,
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
            cache_bytes=mx.get_cache_memory(),
        )
