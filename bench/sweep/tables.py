"""Sweep the size of ngram-mod's table and its n: the same traffic through many tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.experiment import Row
from bench.outputs import Work
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome
from bench.sweep.replaying import Setup, figures
from bench.sweep.traffic import AGAIN, TrafficRequest
from bench.sweep.watched_table import WatchedTables
from drafters.ngram_mod import NAME, NgramModDrafter

ENTRIES = tuple(1 << power for power in range(12, 23))
"""4,096 to 4,194,304."""

REQUESTS = (100, 1000)
MEASURED = 24
"""Requests that are replayed at each table size; the others only fill the table."""

NOTHING_LOST = 0.995
"""A table with at least this share of the largest table's figures counts as equally good."""


def measured_numbers(num_requests: int, max_measured: int) -> list[int]:
    """Return the indices of the requests to replay: evenly spread over the second half of the traffic."""
    candidates = range(num_requests // 2, num_requests)
    step = max(1, len(candidates) // max_measured)
    return list(candidates[::-1][::step][:max_measured])[::-1]


def sweep(
    setup: Setup,
    points: Sequence[tuple[int, int]],
    traffic: Sequence[TrafficRequest],
    max_measured: int,
    work: Work,
) -> Iterator[Row]:
    """Yield a row for each (entries, n): what the table held and drafted towards the end of this traffic.

    collisions: tokens written to slots of other n-grams; overwritten: their share of all written tokens.
    foreign_drafts: share of drafted tokens that other n-grams had written. known: share of answer tokens that
    the table predicts, one at a time; known_again: the same for answers whose text occurred before.
    """
    measured = set(measured_numbers(len(traffic), max_measured))
    for entries, n in points:
        yield _row(setup, entries, n, traffic, measured)
        work.advance()


def _row(setup: Setup, entries: int, n: int, traffic: Sequence[TrafficRequest], measured: set[int]) -> Row:
    watched = WatchedTables(setup.vocabulary, n, entries)
    table, settings = watched.watched, replace(setup.settings, ngram_mod_size=n)
    player = replace(setup, settings=settings).player({"draft_type": NAME}, [NgramModDrafter(watched)])
    outcome = Outcome()
    written, drafted, known, again = (Counter[str]() for _ in range(4))
    for number, request in enumerate(traffic):
        before = Counter(table.collisions)
        prompt, answer = request.prompt.tolist(), request.answer.tolist()
        table.learn(prompt)
        follows = [*prompt[-n:], *answer]
        if number not in measured:
            table.learn(follows)
            written.update(table.collisions - before)
            continue
        found = table.look_up(follows)
        known.update(found)
        again.update(found if request.kind == AGAIN else {})
        outcome.add(player.play(TokenPair(tuple(prompt), tuple(answer))))
        drafted.update(table.collisions - before)
    return {
        "workload": f"{len(traffic):,} requests", "entries": entries, "ngram_size": n,
        "bytes": table.num_bytes, "requests": len(traffic),
        "traffic_tokens": sum(len(request.prompt) + len(request.answer) for request in traffic),
        "measured": len(measured), "occupancy": table.occupied / entries,
        "collisions": written["overwritten"],
        "overwritten": written["overwritten"] / max(1, written["written"]),
        "foreign_drafts": drafted["foreign"] / max(1, drafted["drafted"]),
        "known": known["right"] / max(1, known["count"]),
        "known_again": again["right"] / again["count"] if again["count"] else None,
        **figures(outcome),
    }  # fmt: skip


def smallest_without_loss(rows: Sequence[Row]) -> int:
    """Return the entries of the smallest table that is as good as the largest one."""
    largest = max(rows, key=lambda row: row["entries"])
    names = ("known", "tokens_per_forward", "speedup")
    return min(
        int(row["entries"])
        for row in rows
        if all(row[name] >= NOTHING_LOST * largest[name] for name in names)
    )
