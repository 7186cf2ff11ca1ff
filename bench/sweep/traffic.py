"""Generate the traffic of a server over weeks: new texts, texts that are edited, and texts that are repeated.

The texts are Python files of the packages installed here. Their order and edits depend on a seed.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.replay.edits import LARGEST_FILE, SMALLEST_FILE, edit

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
