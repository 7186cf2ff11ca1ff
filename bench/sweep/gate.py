"""Sweep the gate's threshold: how repetitive a prompt must be for the gate to start with long drafts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, mean
from typing import Any, Literal

from bench.pairs import TokenPair
from bench.sweep.answering import Advance
from bench.sweep.replaying import Setup, figures, replay_chats
from drafters.repetition import repetition_score

Mode = Literal["auto", "on"]

MODES: tuple[Mode, ...] = ("auto", "on")
"""For prompts below the threshold, auto starts with short drafts and learns; on never drafts."""

THRESHOLDS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)


def sweep(
    setup: Setup, thresholds: Sequence[float], pairs: Sequence[TokenPair], advance: Advance
) -> Iterator[dict[str, Any]]:
    """Yield a row for each threshold, gate mode and workload, with draft type auto.

    repetitive: the share of prompts at or above the threshold.
    """
    scores: dict[str, list[float]] = {}
    for pair in pairs:
        if pair.is_measured:
            scores.setdefault(pair.workload, []).append(repetition_score(pair.prompt))
    for threshold in sorted(thresholds):
        for mode in MODES:
            settings = replace(setup.settings, gate=mode, gate_threshold=threshold)
            for workload, outcome in replay_chats(setup.player(settings, "auto"), pairs).items():
                yield {
                    "threshold": threshold,
                    "gate": mode,
                    "workload": workload,
                    "repetitive": mean(score >= threshold for score in scores[workload]),
                    **figures(outcome),
                }
            advance()


def means(rows: Sequence[Mapping[str, Any]], mode: Mode) -> dict[float, tuple[float, float]]:
    """Return by threshold the geometric mean of all workloads' speedups, and the lowest."""
    speedups: dict[float, list[float]] = {}
    for row in rows:
        if row["gate"] == mode:
            speedups.setdefault(row["threshold"], []).append(row["speedup"])
    return {threshold: (geometric_mean(values), min(values)) for threshold, values in speedups.items()}
