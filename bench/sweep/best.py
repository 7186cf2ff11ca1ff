"""Measure the default and the best configurations of a grid on the engine, beside the replay."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

from bench.decode.answering import Answering
from bench.local_engine import LocalEngine
from bench.statistics import ratio
from bench.sweep.answering import Advance, AnsweredChat, Variant, measure, speed_of
from bench.sweep.grid import Configuration, best_of, default_configuration
from config.settings import Settings
from drafters.assembly import make_drafters


def choose(rows: Sequence[Mapping[str, Any]], settings: Settings) -> list[Configuration]:
    """Return the server's default and the best configuration of each draft type in the grid."""
    types = dict.fromkeys(row["draft_type"] for row in rows)
    chosen = [default_configuration(settings.draft_type, settings)] if settings.draft_type in types else []
    return list(dict.fromkeys([*chosen, *(best_of(rows, draft_type) for draft_type in types)]))


def measure_points(
    answering: Answering,
    points: Sequence[Configuration],
    answered: Sequence[AnsweredChat],
    settings: Settings,
    repeats: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each configuration and workload. The fastest repeat counts, plain and drafted."""
    variants = {"plain": Variant(lambda _: None, "none")} | {
        str(point): Variant(
            partial(_prepare, point.settings(settings)), point.draft_type, point.num_draft_tokens
        )
        for point in points
    }
    rows = measure(answering, answered, variants, repeats, advance)
    for point, workload in product(points, dict.fromkeys(row["workload"] for row in rows)):
        drafted, plain = (
            [row for row in rows if (row["workload"], row["arm"]) == (workload, arm)]
            for arm in (str(point), "plain")
        )
        sums = {
            name: sum(row[name] for row in drafted)
            for name in ("num_tokens", "num_forwards", "num_drafted", "num_accepted")
        }
        yield {
            **asdict(point),
            "workload": workload,
            "tokens": sums["num_tokens"],
            "speedup": speed_of(drafted) / speed_of(plain),
            "tokens_per_forward": sums["num_tokens"] / sums["num_forwards"],
            "acceptance": ratio(sums["num_accepted"], sums["num_drafted"]),
            "parity": "PASS" if all(row["is_equal"] for row in drafted) else "FAIL",
        }


def _prepare(settings: Settings, local: LocalEngine) -> None:
    local.drafters.update(make_drafters(settings, local.engine.tokenizer.fingerprint))
