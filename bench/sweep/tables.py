"""How large ngram-mod's table has to be: the same traffic through tables of many sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.pairs import TokenPair
from bench.policies import Outcome
from bench.sweep.asking import Advance
from bench.sweep.replaying import Setup, figures
from bench.sweep.traffic import AGAIN, Asked
from bench.sweep.watched_table import Collisions, Lookups, WatchedMemory
from drafters.ngram_mod import NgramModDrafter

ENTRIES = tuple(1 << power for power in range(12, 23))
"""4,096 to 4,194,304."""

REQUESTS = (100, 1000)
MEASURED = 24
"""Requests that are replayed at each size of table; the others only fill it."""

LAST_SHARE = 0.5
"""The requests measured are from this last part of the traffic."""

NOTHING_LOST = 0.995
"""A table that knows so much of what the largest knows has lost nothing worth telling."""


def measured_numbers(num_requests: int, most: int) -> list[int]:
    """Which requests of a traffic are measured: at most so many, evenly over its last part."""
    first = int(num_requests * (1 - LAST_SHARE))
    candidates = range(first, num_requests)
    step = max(1, len(candidates) // most)
    return list(candidates[::-1][::step][:most])[::-1]


def sweep(
    setup: Setup,
    entries: Sequence[int],
    traffic: Sequence[Asked],
    most_measured: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """A row for each size: what its table held and drafted towards the end of this traffic.

    collisions: tokens written to slots of other n-grams; overwritten: their share of all that were.
    foreign_drafts: share of drafted tokens that other n-grams had left. known: share of the answers' tokens
    that the table would have drafted rightly, one at a time; known_again: in answers whose text came before.
    """
    measured = set(measured_numbers(len(traffic), most_measured))
    for size in sorted(entries):
        yield _row(setup, size, traffic, measured)
        advance()


def sweep_ngram_sizes(
    setup: Setup,
    ngram_sizes: Sequence[int],
    traffic: Sequence[Asked],
    most_measured: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Likewise a row for each n, with as many entries as a server has by default."""
    measured = set(measured_numbers(len(traffic), most_measured))
    for n in sorted(ngram_sizes):
        settings = replace(setup.settings, ngram_mod_size=n)
        yield _row(replace(setup, settings=settings), settings.ngram_table_entries, traffic, measured)
        advance()


def _row(setup: Setup, size: int, traffic: Sequence[Asked], measured: set[int]) -> dict[str, Any]:
    memory = WatchedMemory(setup.vocabulary, setup.settings.ngram_mod_size, size)
    table = memory.watched
    player = setup.player(setup.settings, "ngram-mod", [NgramModDrafter(memory)])
    outcome, written, drafted = Outcome(), Collisions(), Collisions()
    seen: dict[bool, Lookups] = {True: Lookups(), False: Lookups()}
    for number, asked in enumerate(traffic):
        before = replace(table.collisions)
        if number not in measured:
            table.learn(asked.prompt.tolist())
            table.learn([*asked.prompt[-table.n :].tolist(), *asked.answer.tolist()])
            written.add(table.collisions.since(before))
            continue
        prompt, answer = asked.prompt.tolist(), asked.answer.tolist()
        table.learn(prompt)
        seen[asked.kind == AGAIN] += table.look_up([*prompt[-table.n :], *answer])
        outcome.add(player.play(TokenPair(tuple(prompt), tuple(answer))))
        drafted.add(table.collisions.since(before))
    both = seen[True] + seen[False]
    return {
        "workload": f"{len(traffic):,} requests",
        "entries": size,
        "ngram_size": table.n,
        "bytes": table.num_bytes,
        "requests": len(traffic),
        "traffic_tokens": sum(len(asked.prompt) + len(asked.answer) for asked in traffic),
        "measured": len(measured),
        "occupancy": table.occupied / size,
        "collisions": written.overwritten,
        "overwritten": written.overwritten / max(1, written.written),
        "foreign_drafts": drafted.foreign / max(1, drafted.drafted),
        "known": both.right / max(1, both.count),
        "known_again": seen[True].right / seen[True].count if seen[True].count else None,
        **figures(outcome),
    }


def smallest_without_loss(rows: Sequence[Mapping[str, Any]]) -> int:
    """Entries of the smallest table that knew as much, and brought as much, as the largest one."""
    largest = max(rows, key=lambda row: row["entries"])
    enough = [row["entries"] for row in rows if _loses_nothing(row, largest)]
    return int(min(enough))


def _loses_nothing(row: Mapping[str, Any], largest: Mapping[str, Any]) -> bool:
    return all(
        row[figure] >= NOTHING_LOST * largest[figure] for figure in ("known", "tokens_per_forward", "speedup")
    )
