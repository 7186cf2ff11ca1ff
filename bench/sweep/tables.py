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
from drafters.ngram_mod.drafter import NgramModDrafter
from drafters.ngram_mod.table import NgramModTable
from drafters.ngram_mod.tables import NgramModTables

NEW, AGAIN, EDIT, EDIT_AGAIN = "new", "again", "edit", "edit again"
SHARES = {NEW: 0.2, AGAIN: 0.3, EDIT: 0.25, EDIT_AGAIN: 0.25}
"""Edits show the file; new texts and repeated ones are requested without showing them."""

FAST_EDITS = ("values", "docstrings", "delete", "lines")
"""The kinds of edits in bench/replay/edits.py that are fast to generate."""

MEASURED = 24
"""About so many requests are replayed at each point; the others only fill the table."""


def source_files(root: Path, seed: int) -> list[Path]:
    """Return the Python files that are not too small, in an order that depends on the seed."""
    paths = sorted(path for path in root.rglob("*.py") if path.stat().st_size >= SMALLEST_FILE)
    random.Random(seed).shuffle(paths)
    return paths


def make_traffic(
    paths: Iterable[Path], encode: Callable[[str], list[int]], count: int, seed: int
) -> Iterator[TokenPair]:
    """Yield count requests with their kind as workload; shorter traffic with a seed begins longer traffic.

    The age of a repeated text is drawn evenly over its logarithm: some are recent, some from the very start.
    """
    rng, files = random.Random(f"traffic {seed}"), cycle(paths)
    # By lines, so that an edited file costs little more than its changed lines.
    known = lru_cache(1 << 18)(encode)
    used: list[str] = []

    def ids(text: str) -> tuple[int, ...]:
        return tuple(token for line in text.splitlines(keepends=True) for token in known(line))

    for _ in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0] if used else NEW
        if kind in (AGAIN, EDIT_AGAIN):
            text = used[-round(len(used) ** rng.random())]
        else:
            text = next(files).read_text(encoding="utf-8", errors="ignore")[:LARGEST_FILE]
            text = text.rpartition("\n")[0] + "\n"
        prompt, answer = "Write it again.\n" if kind == AGAIN else "Write a file.\n", text
        if kind in (EDIT, EDIT_AGAIN):
            edited, instruction = edit(text, rng.choice(FAST_EDITS), rng)
            prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
            text, answer = edited, f"```python\n{edited}```\n"
        used.append(text)
        yield TokenPair(ids(prompt), ids(answer), kind)


def fill(setup: Setup, point: Row, traffic: Sequence[TokenPair]) -> Row:
    """Return what a table holds and drafts over the second half of the traffic, besides the point's fields.

    point: requests, of this traffic; entries and ngram_size, of the table.
    overwritten: share of written tokens that replaced another one. known: share of answer tokens that the
    table predicts, one at a time; known_again: the same for answers whose text occurred before.
    """
    count, entries, n = point["requests"], point["entries"], point["ngram_size"]
    tables = NgramModTables(setup.vocabulary, n, entries)
    settings = replace(setup.settings, draft_type="ngram-mod", ngram_mod_size=n)
    player, table = setup.server(settings, [NgramModDrafter(tables)]), tables.table("")
    measured = range(count // 2, count, max(1, count // 2 // MEASURED))
    known, again, outcome = list[bool](), list[bool](), Outcome()
    for number, request in enumerate(traffic[:count]):
        if number not in measured:
            table.learn((*request.prompt, *request.answer))
            continue
        table.learn(request.prompt)
        found = predicted(table, (*request.prompt[-n:], *request.answer))
        known += found
        again += found if request.workload == AGAIN else []
        outcome.add(player.play(request))
    return {
        **point, "traffic_tokens": sum(len(one.prompt) + len(one.answer) for one in traffic[:count]),
        "occupancy": table.occupied / entries,
        "overwritten": ratio(tables.counts.overwrites, tables.counts.inserts),
        "known": mean(known), "known_again": ratio(sum(again), len(again)), **outcome.figures(),
    }  # fmt: skip


def predicted(table: NgramModTable, text: Sequence[int]) -> list[bool]:
    """Return for each token after the first n of a text whether the table has it after the n before it."""
    slots = table.slots(table.hashes(np.asarray(text, np.int64))).tolist()
    return [table.token(slot) == token for slot, token in zip(slots, text[table.n :], strict=True)]
