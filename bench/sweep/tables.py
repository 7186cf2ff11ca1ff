"""The same generated traffic through n-gram tables of different sizes, and with different n.

The traffic is that of weeks: texts that are edited, texts that come again, and new ones. The texts are Python
files of the packages installed here; their order and edits depend on a seed.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from statistics import mean

import numpy as np

from bench.experiment import Row
from bench.replay.edits import LARGEST_FILE, SMALLEST_FILE, edit
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome, Setup
from bench.statistics import ratio
from drafters.ngram_mod.drafter import NAME, NgramModDrafter
from drafters.ngram_mod.table import NgramModTable
from drafters.ngram_mod.tables import NgramModTables

EDIT, AGAIN, NEW = "edit", "again", "new"
SHARES = {EDIT: 0.5, AGAIN: 0.3, NEW: 0.2}
"""edit: a file and a change to make; half of these files occurred before.
again: a text that occurred before, requested without quoting it. new: a text that never occurred before."""

RETURNS = 0.5
FAST_EDITS = ("values", "docstrings", "delete", "lines")
"""The kinds of edits in bench/replay/edits.py that are fast to generate."""

MEASURED = 24
"""About so many requests are replayed at each table size; the others only fill the table."""


def source_files(root: Path, seed: int) -> list[Path]:
    """Return the Python files of a usual size, in an order that depends on the seed."""
    paths = sorted(
        path for path in root.rglob("*.py") if SMALLEST_FILE <= path.stat().st_size <= LARGEST_FILE
    )
    random.Random(seed).shuffle(paths)
    return paths


def make_traffic(
    paths: Iterable[Path], encode: Callable[[str], list[int]], count: int, seed: int
) -> Iterator[TokenPair]:
    """Yield count requests with their kind as workload; shorter traffic with a seed begins longer traffic.

    The age of a repeated text is drawn evenly over its logarithm: some are recent, some from the very start.
    Files are used again once all have been used.
    """
    rng, files = random.Random(f"traffic {seed}"), cycle(paths)
    # By lines, so that an edited file costs little more than its changed lines.
    known = lru_cache(1 << 18)(encode)
    used: list[str] = []

    def ids(text: str) -> tuple[int, ...]:
        return tuple(token for line in text.splitlines(keepends=True) for token in known(line))

    for _ in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        if used and (kind == AGAIN or (kind == EDIT and rng.random() < RETURNS)):
            text = used[-round(len(used) ** rng.random())]
        else:
            text = next(files).read_text(encoding="utf-8", errors="ignore")
            kind = EDIT if kind == EDIT else NEW
        prompt, answer = "Write it again.\n" if kind == AGAIN else "Write a file.\n", text
        if kind == EDIT:
            edited, instruction = edit(text, rng.choice(FAST_EDITS), rng)
            prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
            text, answer = edited, f"```python\n{edited}```\n"
        used.append(text)
        yield TokenPair(ids(prompt), ids(answer), kind)


def fill(setup: Setup, entries: int, n: int, traffic: Sequence[TokenPair]) -> Row:
    """Return what a table of this size and n holds and drafts over the second half of this traffic.

    overwritten: share of written tokens that replaced another one. known: share of answer tokens that the
    table predicts, one at a time; known_again: the same for answers whose text occurred before.
    """
    tables = NgramModTables(setup.vocabulary, n, entries)
    settings = replace(setup.settings, draft_type=NAME, ngram_mod_size=n)
    player, table = setup.server(settings, [NgramModDrafter(tables)]), tables.table("")
    half, outcome = len(traffic) // 2, Outcome()
    measured = range(half, len(traffic), max(1, (len(traffic) - half) // MEASURED))
    known: dict[str, list[bool]] = {}
    for number, request in enumerate(traffic):
        if number not in measured:
            table.learn((*request.prompt, *request.answer))
            continue
        table.learn(request.prompt)
        known.setdefault(request.workload, []).extend(
            predicted(table, (*request.prompt[-n:], *request.answer))
        )
        outcome.add(player.play(request))
    return {
        "entries": entries, "ngram_size": n, "requests": len(traffic),
        "traffic_tokens": sum(len(request.prompt) + len(request.answer) for request in traffic),
        "occupancy": table.occupied / entries,
        "overwritten": ratio(tables.counts.overwrites, tables.counts.inserts),
        "known": mean(right for found in known.values() for right in found),
        "known_again": mean(known[AGAIN]) if AGAIN in known else None, **outcome.figures(),
    }  # fmt: skip


def predicted(table: NgramModTable, text: Sequence[int]) -> list[bool]:
    """Return for each token after the first n of a text whether the table has it after the n before it."""
    slots = table.slots(table.hashes(np.asarray(text, np.int64))).tolist()
    return [table.token(slot) == token for slot, token in zip(slots, text[table.n :], strict=True)]
