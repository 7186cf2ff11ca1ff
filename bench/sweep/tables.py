"""Sweep the size of ngram-mod's table and its n: the same generated traffic through many tables.

The traffic is that of weeks: new texts, texts that are edited, and texts that are repeated. The texts are
Python files of the packages installed here; their order and edits depend on a seed.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, cycle
from pathlib import Path
from statistics import mean

import numpy as np

from bench.experiment import Row
from bench.outputs import Work
from bench.replay.edits import LARGEST_FILE, SMALLEST_FILE, edit
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome, Setup
from bench.statistics import ratio
from bench.sweep.replaying import player_at
from drafters.ngram_mod.drafter import NAME, NgramModDrafter
from drafters.ngram_mod.table import Hashes, NgramModCounts, NgramModTable, Tokens
from drafters.ngram_mod.tables import NgramModTables

EDIT, AGAIN, NEW = "edit", "again", "new"

SHARES = {EDIT: 0.5, AGAIN: 0.3, NEW: 0.2}
"""edit: a file and a change to make; half of these files occurred before.
again: a text that occurred before, requested without quoting it. new: a text that never occurred before."""

RETURNS = 0.5

QUICK_KINDS = ("values", "docstrings", "delete", "lines")
"""The kinds of edits in bench/replay/edits.py that are fast to generate."""


def source_files(roots: Sequence[Path], seed: int) -> list[Path]:
    """Return the Python files that are not too small, in an order that depends on the seed."""
    paths = sorted(
        path for root in roots for path in root.rglob("*.py") if path.stat().st_size >= SMALLEST_FILE
    )
    random.Random(seed).shuffle(paths)
    return paths


def make_traffic(
    paths: Sequence[Path], encode: Callable[[str], list[int]], count: int, seed: int
) -> Iterator[TokenPair]:
    """Yield count requests with their kind as workload; shorter traffic with a seed begins longer traffic.

    The age of a repeated text is drawn evenly over its logarithm: some are recent, some from the very start.
    Files are reused once all have been used.
    """
    rng, files = random.Random(f"traffic {seed}"), map(_beginning, cycle(paths))
    # By lines, so that an edited file costs little more than its changed lines.
    known = lru_cache(1 << 18)(encode)
    used: list[str] = []

    def ids(text: str) -> tuple[int, ...]:
        return tuple(token for line in text.splitlines(keepends=True) for token in known(line))

    for _ in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        text = None
        if used:
            back = round(math.exp(math.log(len(used)) * rng.random()))
            text = used[-max(1, min(back, len(used)))]
        if text is None or kind == NEW or (kind == EDIT and rng.random() >= RETURNS):
            text, kind = next(files), EDIT if kind == EDIT else NEW
        prompt, answer = ("Write it again.\n" if kind == AGAIN else "Write a file.\n"), text
        if kind == EDIT:
            edited, instruction = edit(text, rng.choice(QUICK_KINDS), rng)
            prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
            text, answer = edited, f"```python\n{edited}```\n"
        used.append(text)
        yield TokenPair(ids(prompt), ids(answer), kind)


def _beginning(path: Path) -> str:
    """Return as many lines of a file as are not too long together."""
    lines = path.read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
    ends = accumulate(map(len, lines))
    return "".join(line for line, end in zip(lines, ends, strict=True) if end <= LARGEST_FILE) or "pass\n"


_LOW_BITS = (1 << 31) - 1


class WatchedTable(NgramModTable):
    """The server's table, which knows the n-gram that wrote each slot.

    owners: a table of the same size, with the low 31 bits of that n-gram's hash in each slot; its own counts
    are those of tokens that were written, and of slots that were taken from other n-grams.
    drafted: number of drafted tokens. foreign: those of them that another n-gram had written.
    """

    def __init__(self, n: int, size: int) -> None:
        super().__init__(n, size)
        self.owners = NgramModTable(n, size)
        self.drafted = self.foreign = 0

    def put(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Put as NgramModTable does, and record the owners."""
        super().put(pairs)
        self.owners.put([(hash_, hash_ & _LOW_BITS) for hash_, _ in pairs])

    def put_all(self, hashes: Hashes, tokens: Tokens) -> None:
        """Put as NgramModTable does, and record the owners."""
        super().put_all(hashes, tokens)
        self.owners.put_all(hashes, (hashes & np.uint64(_LOW_BITS)).astype(np.int32))

    def continuation(self, ngram: Sequence[int], hash_: int, limit: int) -> list[int]:
        """Draft as NgramModTable does, and count foreign tokens."""
        tokens = super().continuation(ngram, hash_, limit)
        line = [*ngram, *tokens]
        for at, token in enumerate(tokens):
            self.foreign += not self.is_owned(hash_)
            hash_ = self.roll(hash_, line[at], token)
        self.drafted += len(tokens)
        return tokens

    def is_owned(self, hash_: int) -> bool:
        """Return whether the n-gram with this hash wrote its slot last."""
        return self.owners.token(self.slot(hash_)) == hash_ & _LOW_BITS

    def look_up(self, text: Sequence[int]) -> list[bool]:
        """Return for each token after the first n of a text whether its n-gram wrote it to the table.

        A token that another n-gram wrote is right by chance.
        """
        hashes = self.hashes(np.asarray(text, np.int64)).tolist()
        return [
            self.is_owned(hash_) and self.token(self.slot(hash_)) == follows
            for hash_, follows in zip(hashes, text[self.n :], strict=True)
        ]


class WatchedTables(NgramModTables):
    """A single watched table, shared by all tenants."""

    def __init__(self, vocabulary: str, n: int, size: int) -> None:
        super().__init__(vocabulary, n, size)
        self.watched = WatchedTable(n, size)

    def table(self, tenant: str) -> WatchedTable:  # noqa: ARG002
        """Return the shared table."""
        return self.watched


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
    traffic: Sequence[TokenPair],
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


def _row(setup: Setup, entries: int, n: int, traffic: Sequence[TokenPair], measured: set[int]) -> Row:
    watched = WatchedTables(setup.vocabulary, n, entries)
    table, settings = watched.watched, replace(setup.settings, ngram_mod_size=n)
    at = replace(setup, settings=settings)
    player = player_at(at, {"draft_type": NAME}, [NgramModDrafter(watched)])
    outcome = Outcome()
    known: list[bool] = []
    again: list[bool] = []
    written, aside = table.owners.counts, NgramModCounts()
    for number, request in enumerate(traffic):
        # A replay writes the prompt twice, so it does not count.
        table.owners.counts = aside if number in measured else written
        table.learn(request.prompt)
        follows = (*request.prompt[-n:], *request.answer)
        if number not in measured:
            table.learn(follows)
            continue
        found = table.look_up(follows)
        known += found
        again += found if request.workload == AGAIN else []
        outcome.add(player.play(request))
    return {
        "workload": f"{len(traffic):,} requests", "entries": entries, "ngram_size": n,
        "bytes": table.num_bytes, "requests": len(traffic),
        "traffic_tokens": sum(len(request.prompt) + len(request.answer) for request in traffic),
        "measured": len(measured), "occupancy": table.occupied / entries,
        "collisions": written.overwrites, "overwritten": ratio(written.overwrites, written.inserts),
        "foreign_drafts": table.foreign / max(1, table.drafted),
        "known": mean(known), "known_again": mean(again) if again else None, **outcome.figures(),
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
