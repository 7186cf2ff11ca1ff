"""Sweep the size of ngram-mod's table and its n: the same generated traffic through many tables.

The traffic is that of weeks: new texts, texts that are edited, and texts that are repeated. The texts are
Python files of the packages installed here; their order and edits depend on a seed.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.experiment import Row
from bench.outputs import Work
from bench.replay.edits import LARGEST_FILE, SMALLEST_FILE, edit
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome
from bench.sweep.replaying import Setup
from drafters.ngram_mod import NAME, NgramModDrafter
from drafters.ngram_mod_table import Hashes, NgramModTable, Tokens
from drafters.ngram_mod_tables import NgramModTables

Ids = npt.NDArray[np.int32]

EDIT, AGAIN, NEW = "edit", "again", "new"

SHARES = {EDIT: 0.5, AGAIN: 0.3, NEW: 0.2}
"""edit: a file and a change to make; half of these files occurred before.
again: a text that occurred before, requested without quoting it. new: a text that never occurred before."""

RETURNS = 0.5

QUICK_KINDS = ("values", "docstrings", "delete", "lines")
"""The kinds of edits in bench/replay/edits.py that are fast to generate."""


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """A request and its answer.

    prompt, answer: token ids. kind: a key of SHARES. age: requests since its text last occurred; None if new.
    """

    kind: str
    prompt: Ids
    answer: Ids
    age: int | None = None


def source_files(roots: Sequence[Path], seed: int) -> list[Path]:
    """Return the Python files that are not too small, in an order that depends on the seed."""
    paths = sorted(
        path for root in roots for path in root.rglob("*.py") if path.stat().st_size >= SMALLEST_FILE
    )
    random.Random(seed).shuffle(paths)
    return paths


def make_traffic(
    paths: Sequence[Path], encode: Callable[[str], list[int]], count: int, seed: int
) -> Iterator[TrafficRequest]:
    """Yield count requests; shorter traffic with the same seed is a prefix of longer traffic.

    The age of a repeated text is drawn evenly over its logarithm: some are recent, some from the very start.
    Files are reused once all have been used.
    """
    rng, files = random.Random(f"traffic {seed}"), map(_beginning, cycle(paths))
    # By lines, so that an edited file costs little more than its changed lines.
    known = lru_cache(1 << 18)(encode)
    used: list[tuple[int, str]] = []

    def ids(text: str) -> Ids:
        return np.array([token for line in text.splitlines(keepends=True) for token in known(line)], np.int32)

    for number in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        past = None
        if used:
            back = round(math.exp(math.log(len(used)) * rng.random()))
            past = used[-max(1, min(back, len(used)))]
        if past is None or kind == NEW or (kind == EDIT and rng.random() >= RETURNS):
            past, kind = None, EDIT if kind == EDIT else NEW
        age, text = (None, next(files)) if past is None else (number - past[0], past[1])
        prompt, answer = ("Write it again.\n" if kind == AGAIN else "Write a file.\n"), text
        if kind == EDIT:
            edited, instruction = edit(text, rng.choice(QUICK_KINDS), rng)
            prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
            text, answer = edited, f"```python\n{edited}```\n"
        used.append((number, text))
        yield TrafficRequest(kind, ids(prompt), ids(answer), age)


def _beginning(path: Path) -> str:
    """Return as many lines of a file as are not too long together."""
    lines = path.read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
    ends = accumulate(map(len, lines))
    return "".join(line for line, end in zip(lines, ends, strict=True) if end <= LARGEST_FILE) or "pass\n"


NO_OWNER = 0x9E3779B97F4A7C15
"""Marks an empty slot: a hash that is as unlikely as any. 0 will not do: it is the hash of n tokens 0."""


class WatchedTable(NgramModTable):
    """The server's table, with the hash of the n-gram that wrote each slot: 8 more bytes per slot.

    collisions: counts since the table was made. "written": tokens written; "overwritten": those of them that
    replaced another n-gram's; "drafted": tokens drafted; "foreign": those of them that another n-gram had
    written.
    """

    def __init__(self, n: int, size: int) -> None:
        super().__init__(n, size)
        self.collisions: Counter[str] = Counter()
        self._owners: Hashes = np.full(size, NO_OWNER, np.uint64)

    def put(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Put as NgramModTable does, and count collisions."""
        self._take_slots(np.array([hash_ for hash_, _ in pairs], np.uint64))
        super().put(pairs)

    def put_all(self, hashes: Hashes, tokens: Tokens) -> None:
        """Put as NgramModTable does, and count collisions."""
        self._take_slots(hashes)
        super().put_all(hashes, tokens)

    def continuation(self, ngram: Sequence[int], hash_: int, limit: int) -> list[int]:
        """Draft as NgramModTable does, and count foreign tokens."""
        tokens = super().continuation(ngram, hash_, limit)
        line = [*ngram, *tokens]
        for at, token in enumerate(tokens):
            self.collisions["foreign"] += int(self._owners[self.slot(hash_)]) != hash_
            hash_ = self.roll(hash_, line[at], token)
        self.collisions["drafted"] += len(tokens)
        return tokens

    def look_up(self, text: Sequence[int]) -> dict[str, int]:
        """Look up every n-gram of a text of more than n tokens.

        Return their "count", and for how many the table held the next token ("right"), written by the same
        n-gram; tokens that another one wrote are right by chance.
        """
        tokens = np.asarray(text, np.int64)
        hashes, follows = self.hashes(tokens), tokens[self.n :]
        slots = self.slots(hashes)
        held = np.fromiter((self.token(slot) for slot in slots.tolist()), np.int64, len(slots))
        is_right = (held == follows) & (self._owners[slots] == hashes)
        return {"count": len(slots), "right": int(np.count_nonzero(is_right))}

    def _take_slots(self, hashes: Hashes) -> None:
        """Count the slots that these n-grams take from others, in order, and record the new owners."""
        if not len(hashes):
            return
        slots = self.slots(hashes)
        order = np.argsort(slots, kind="stable")
        slots, owners = slots[order], hashes[order]
        starts_group = np.append(True, slots[1:] != slots[:-1])
        before = np.where(starts_group, self._owners[slots], np.roll(owners, 1))
        self.collisions["written"] += len(hashes)
        self.collisions["overwritten"] += int(np.count_nonzero((before != owners) & (before != NO_OWNER)))
        # Of several n-grams that write to one slot, the last one becomes its owner.
        self._owners[slots] = owners


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
        **outcome.figures(),
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
