"""Sweep draft type x draft length x n-gram size, by replaying known answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

from bench.pairs import TokenPair
from bench.sweep.answering import Advance
from bench.sweep.replaying import Setup, figures, replay_chats
from config.settings import Settings
from engine.request import DraftType

DRAFT_TYPES: tuple[DraftType, ...] = ("auto", "suffix", "ngram-mod", "ngram-simple")
WITHOUT_NGRAMS = ("suffix",)
"""Draft types without an n-gram size."""

LENGTHS = (2, 4, 8, 16, 31)
NGRAM_SIZES = (2, 4, 8, 12, 16, 24)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A point of the grid.

    ngram_size: n of ngram-mod, and the shortest match of ngram-simple; None for types without one.
    """

    draft_type: DraftType
    num_draft_tokens: int
    ngram_size: int | None

    def settings(self, base: Settings) -> Settings:
        """Return the settings of a server with this configuration."""
        chosen = replace(base, num_draft_tokens=self.num_draft_tokens)
        if self.ngram_size is None:
            return chosen
        if self.draft_type == "ngram-simple":
            longest = max(chosen.ngram_size_max, self.ngram_size)
            return replace(chosen, ngram_size_min=self.ngram_size, ngram_size_max=longest)
        return replace(chosen, ngram_mod_size=self.ngram_size)

    def __str__(self) -> str:
        size = "" if self.ngram_size is None else f", n-grams of {self.ngram_size}"
        return f"{self.draft_type}, drafts of {self.num_draft_tokens}{size}"


def configurations(
    draft_types: Sequence[DraftType], lengths: Sequence[int], ngram_sizes: Sequence[int]
) -> list[Configuration]:
    """Return all points of the grid, by increasing length and size."""
    return [
        Configuration(draft_type, length, size)
        for draft_type in draft_types
        for length in sorted(lengths)
        for size in ((None,) if draft_type in WITHOUT_NGRAMS else sorted(ngram_sizes))
    ]


def default_configuration(draft_type: DraftType, settings: Settings) -> Configuration:
    """Return the configuration that a server uses by default with this draft type."""
    size = settings.ngram_size_min if draft_type == "ngram-simple" else settings.ngram_mod_size
    return Configuration(
        draft_type, settings.num_draft_tokens, None if draft_type in WITHOUT_NGRAMS else size
    )


def sweep(
    setup: Setup, points: Sequence[Configuration], pairs: Sequence[TokenPair], advance: Advance
) -> Iterator[dict[str, Any]]:
    """Yield a row for each configuration and workload."""
    for point in points:
        player = setup.player(point.settings(setup.settings), point.draft_type)
        for workload, outcome in replay_chats(player, pairs).items():
            yield {
                "draft_type": point.draft_type,
                "num_draft_tokens": point.num_draft_tokens,
                "ngram_size": point.ngram_size,
                "workload": workload,
                **figures(outcome),
                "acceptance_by_position": [
                    accepted / drafted if drafted else None for drafted, accepted in outcome.by_position
                ],
            }
        advance()


def overall(rows: Sequence[Mapping[str, Any]]) -> dict[Configuration, tuple[float, float]]:
    """Return by configuration the geometric mean of all workloads' speedups, and the lowest."""
    speedups: dict[Configuration, list[float]] = {}
    for row in rows:
        point = Configuration(row["draft_type"], row["num_draft_tokens"], row["ngram_size"])
        speedups.setdefault(point, []).append(row["speedup"])
    return {point: (geometric_mean(values), min(values)) for point, values in speedups.items()}


def best_of(rows: Sequence[Mapping[str, Any]], draft_type: str | None = None) -> Configuration:
    """Return the configuration with the highest mean, of all or one draft type; shorter drafts win ties."""
    means = {p: mean for p, (mean, _) in overall(rows).items() if draft_type in (None, p.draft_type)}
    return max(means, key=lambda point: (round(means[point], 3), -point.num_draft_tokens))


def mean_of(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the geometric mean of the rows' speedups."""
    return geometric_mean(row["speedup"] for row in rows)
