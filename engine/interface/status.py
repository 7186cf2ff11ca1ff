"""Define how the engine describes itself: its state, and what it has counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from reprise.engine.interface.errors import RETRY_AFTER_S

STALL_S = 120.0
"""Seconds without a token or prefill progress, while there is work, that count as a stall: longer than steps
take on slow machines."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for /health.

    state: "stalled" while there are requests but there has been no progress for STALL_S.
    num_running, num_waiting: requests that have been admitted, and those in the queue.
    fault: why the engine is dead or stalled. retry_after_s: see EngineError.
    memory_pressure: of the machine; see engine/memory/pressure.py.
    """

    state: Literal["loading", "ready", "draining", "stalled", "dead"]
    num_running: int
    num_waiting: int
    fault: str | None = None
    retry_after_s: float = RETRY_AFTER_S
    memory_pressure: Literal["none", "warning", "critical"] = "none"


GAP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds, in seconds, of the buckets for inter-token gaps."""


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Counts of the engine since it started, and the memory that MLX holds.

    num_stalls: times that the watchdog found requests but no progress.
    gaps_up_to: cumulative counts of the times between consecutive tokens of a sequence: gaps_up_to[i] counts
        those of at most GAP_BOUNDS_S[i], and the last entry counts all. Tokens of one step are committed
        together, so all but the first have a gap of 0.
    active_bytes: memory in use now. cache_bytes: freed memory that MLX keeps for reuse.
    span_s: seconds of the engine's thread by span; see spans.py.
    by_rank: values of each machine that has a part of the model, by the metric's name and the rank.
    num_embedded, num_embedded_tokens: texts and pairs that have their vector or score, and their tokens.
    num_to_embed: texts and pairs that still wait.
    num_read_ahead: tokens of expected prompts that were computed. num_read_ahead_used: those that prompts
        have used. num_read_ahead_wasted: those that none has used for long.
    read_ahead_s: the seconds that this took. num_to_read: tokens that the prompt being read still lacks.
    pressure_level: 0 for no memory pressure, 1 for a warning, 2 if it is critical.
    given_back_bytes: cached prefixes and free buffers that were dropped under memory pressure.
    """

    num_failed_steps: int = 0
    num_preemptions: int = 0
    num_stalls: int = 0
    gaps_up_to: tuple[int, ...] = (0,) * (len(GAP_BOUNDS_S) + 1)
    gap_sum_s: float = 0.0
    active_bytes: int = 0
    peak_bytes: int = 0
    cache_bytes: int = 0
    span_s: Mapping[str, float] = field(default_factory=dict)
    by_rank: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    num_embedded: int = 0
    num_embedded_tokens: int = 0
    num_to_embed: int = 0
    num_read_ahead: int = 0
    num_read_ahead_used: int = 0
    num_read_ahead_wasted: int = 0
    read_ahead_s: float = 0.0
    num_to_read: int = 0
    pressure_level: int = 0
    given_back_bytes: int = 0


def sum_counts(several: Sequence[EngineCounts]) -> EngineCounts:
    """Add up the counts of several engines, except those of the thread and MLX, which they share."""
    return EngineCounts(
        num_failed_steps=sum(one.num_failed_steps for one in several),
        num_preemptions=sum(one.num_preemptions for one in several),
        gaps_up_to=tuple(map(sum, zip(*(one.gaps_up_to for one in several), strict=True))),
        gap_sum_s=sum(one.gap_sum_s for one in several),
        num_embedded=sum(one.num_embedded for one in several),
        num_embedded_tokens=sum(one.num_embedded_tokens for one in several),
        num_to_embed=sum(one.num_to_embed for one in several),
        num_read_ahead=sum(one.num_read_ahead for one in several),
        num_read_ahead_used=sum(one.num_read_ahead_used for one in several),
        num_read_ahead_wasted=sum(one.num_read_ahead_wasted for one in several),
        read_ahead_s=sum(one.read_ahead_s for one in several),
        num_to_read=sum(one.num_to_read for one in several),
        by_rank={name: values for one in several for name, values in one.by_rank.items()},
    )
