"""Sweep the size of ngram-mod's table: the same traffic through tables of many sizes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.pairs import TokenPair
from bench.replay.policies import Outcome
from bench.sweep.answering import Advance
from bench.sweep.replaying import Setup, figures
from bench.sweep.traffic import AGAIN, TrafficRequest
from bench.sweep.watched_table import WatchedTables
from drafters.ngram_mod import NgramModDrafter

ENTRIES = tuple(1 << power for power in range(12, 23))
"""4,096 to 4,194,304."""

REQUESTS = (100, 1000)
MEASURED = 24
"""Requests that are replayed at each table size; the others only fill the table."""

LAST_SHARE = 0.5
"""The replayed requests are from this last part of the traffic."""

NOTHING_LOST = 0.995
"""A table with at least this share of the largest table's figures counts as equally good."""


def measured_numbers(num_requests: int, max_measured: int) -> list[int]:
    """Return the indices of the requests to replay: evenly spread over the last part of the traffic."""
    first = int(num_requests * (1 - LAST_SHARE))
    candidates = range(first, num_requests)
    step = max(1, len(candidates) // max_measured)
    return list(candidates[::-1][::step][:max_measured])[::-1]


def sweep(
    setup: Setup,
    entries: Sequence[int],
    traffic: Sequence[TrafficRequest],
    max_measured: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each table size: what the table held and drafted towards the end of this traffic.

    collisions: tokens written to slots of other n-grams; overwritten: their share of all written tokens.
    foreign_drafts: share of drafted tokens that other n-grams had written. known: share of answer tokens that
    the table predicts, one at a time; known_again: the same for answers whose text occurred before.
    """
    measured = set(measured_numbers(len(traffic), max_measured))
    for size in sorted(entries):
        yield _row(setup, size, traffic, measured)
        advance()


def sweep_ngram_sizes(
    setup: Setup,
    ngram_sizes: Sequence[int],
    traffic: Sequence[TrafficRequest],
    max_measured: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Yield such a row for each n, with the default number of entries."""
    measured = set(measured_numbers(len(traffic), max_measured))
    for n in sorted(ngram_sizes):
        settings = replace(setup.settings, ngram_mod_size=n)
        yield _row(replace(setup, settings=settings), settings.ngram_table_entries, traffic, measured)
        advance()


def _row(setup: Setup, size: int, traffic: Sequence[TrafficRequest], measured: set[int]) -> dict[str, Any]:
    watched = WatchedTables(setup.vocabulary, setup.settings.ngram_mod_size, size)
    table = watched.watched
    player = setup.player(setup.settings, "ngram-mod", [NgramModDrafter(watched)])
    outcome = Outcome()
    written, drafted = Counter[str](), Counter[str]()
    seen = {True: Counter[str](), False: Counter[str]()}
    for number, request in enumerate(traffic):
        before = Counter(table.collisions)
        if number not in measured:
            table.learn(request.prompt.tolist())
            table.learn([*request.prompt[-table.n :].tolist(), *request.answer.tolist()])
            written.update(table.collisions - before)
            continue
        prompt, answer = request.prompt.tolist(), request.answer.tolist()
        table.learn(prompt)
        seen[request.kind == AGAIN] += table.look_up([*prompt[-table.n :], *answer])
        outcome.add(player.play(TokenPair(tuple(prompt), tuple(answer))))
        drafted.update(table.collisions - before)
    both = seen[True] + seen[False]
    return {
        "workload": f"{len(traffic):,} requests", "entries": size, "ngram_size": table.n,
        "bytes": table.num_bytes, "requests": len(traffic),
        "traffic_tokens": sum(len(request.prompt) + len(request.answer) for request in traffic),
        "measured": len(measured), "occupancy": table.occupied / size, "collisions": written["overwritten"],
        "overwritten": written["overwritten"] / max(1, written["written"]),
        "foreign_drafts": drafted["foreign"] / max(1, drafted["drafted"]),
        "known": both["right"] / max(1, both["count"]),
        "known_again": seen[True]["right"] / seen[True]["count"] if seen[True]["count"] else None,
        **figures(outcome),
    }  # fmt: skip


def smallest_without_loss(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the entries of the smallest table that is as good as the largest one."""
    largest = max(rows, key=lambda row: row["entries"])
    enough = [row["entries"] for row in rows if _loses_nothing(row, largest)]
    return int(min(enough))


def _loses_nothing(row: Mapping[str, Any], largest: Mapping[str, Any]) -> bool:
    return all(
        row[figure] >= NOTHING_LOST * largest[figure] for figure in ("known", "tokens_per_forward", "speedup")
    )
