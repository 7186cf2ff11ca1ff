"""Measure the default and the best configurations of a grid on the engine, beside the replay."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.local_engine import LocalEngine
from bench.sweep.answering import PLAIN, Advance, AnsweredChat, Measured, Variant, measure
from bench.sweep.grid import Configuration, best_of, default_configuration
from config.settings import Settings
from drafters.assembly import make_drafters
from engine.request import DraftChoice


def choose(rows: Sequence[Mapping[str, Any]], settings: Settings) -> list[Configuration]:
    """Return the server's default and the best configuration of each draft type in the grid."""
    types = dict.fromkeys(row["draft_type"] for row in rows)
    chosen = [default_configuration(settings.draft_type, settings)] if settings.draft_type in types else []
    return list(dict.fromkeys([*chosen, *(best_of(rows, draft_type) for draft_type in types)]))


def measure_points(
    local: LocalEngine,
    points: Sequence[Configuration],
    answered: Sequence[AnsweredChat],
    settings: Settings,
    max_tokens: int,
    repeats: int,
    seed: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each configuration and workload. The fastest repeat counts, plain and drafted."""
    variants = [Variant("plain", lambda _: None, PLAIN)]
    for point in points:
        draft = DraftChoice(point.draft_type, point.num_draft_tokens)
        variants.append(Variant(str(point), partial(_prepare, point.settings(settings)), draft))
    totals: dict[str, dict[str, Measured]] = {}
    for one in answered:
        best = measure(local, one, variants, max_tokens, repeats, seed)
        of_workload = totals.setdefault(one.chat.workload, {})
        for name, runs in best.items():
            for pair, run in zip(one.pairs, runs, strict=True):
                if pair.is_measured:
                    of_workload.setdefault(name, Measured()).add(run)
        advance()
    for point in points:
        for workload, of_point in totals.items():
            yield {
                "draft_type": point.draft_type,
                "num_draft_tokens": point.num_draft_tokens,
                "ngram_size": point.ngram_size,
                "workload": workload,
                **_figures(of_point[str(point)], of_point["plain"]),
            }


def _prepare(settings: Settings, local: LocalEngine) -> None:
    local.drafters.update(make_drafters(settings, local.engine.tokenizer.fingerprint))


def _figures(drafted: Measured, plain: Measured) -> dict[str, Any]:
    return {
        "tokens": drafted.num_tokens,
        "speedup": drafted.tokens_per_s / plain.tokens_per_s,
        "tokens_per_forward": drafted.num_tokens / drafted.num_forwards,
        "acceptance": drafted.num_accepted / drafted.num_drafted if drafted.num_drafted else None,
        "parity": "PASS" if drafted.is_equal else "FAIL",
    }
