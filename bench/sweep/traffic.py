"""Generate the traffic of a server over weeks: new texts, texts that are edited, and texts that are repeated.

The texts are Python files of the packages installed here. Their order and edits depend on a seed.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
    Raises ValueError if there are no files.
    """
    if not paths:
        raise ValueError("no Python files of at least 2,500 bytes to make traffic from")
    rng = random.Random(f"traffic {seed}")
    texts, encode = _Texts(paths, rng), _by_lines(encode)
    for number in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        past = texts.past()
        if kind == NEW or (kind == AGAIN and past is None):
            text = texts.fresh()
            texts.keep(number, text)
            yield TrafficRequest(NEW, _ids(encode("Write a file.\n")), _ids(encode(text)))
        elif kind == AGAIN and past is not None:
            last, text = past
            texts.keep(number, text)
            yield TrafficRequest(AGAIN, _ids(encode("Write it again.\n")), _ids(encode(text)), number - last)
        else:
            age = None
            if past is not None and rng.random() < RETURNS:
                age, text = number - past[0], past[1]
            else:
                text = texts.fresh()
            edited, instruction = edit(text, rng.choice(QUICK_KINDS), rng)
            texts.keep(number, edited)
            prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
            yield TrafficRequest(EDIT, _ids(encode(prompt)), _ids(encode(f"```python\n{edited}```\n")), age)


class _Texts:
    """The source files, and the last version of each text so far."""

    def __init__(self, paths: Sequence[Path], rng: random.Random) -> None:
        self.paths = paths
        self.rng = rng
        self._num_used = 0
        self._used: list[tuple[int, str]] = []

    def fresh(self) -> str:
        path = self.paths[self._num_used % len(self.paths)]
        self._num_used += 1
        whole = path.read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
        text = ""
        for line in whole:
            if len(text) + len(line) > LARGEST_FILE:
                break
            text += line
        return text or "pass\n"

    def past(self) -> tuple[int, str] | None:
        """Return an earlier text and its request number; all orders of magnitude of age are as likely."""
        if not self._used:
            return None
        back = round(math.exp(math.log(len(self._used)) * self.rng.random()))
        return self._used[-max(1, min(back, len(self._used)))]

    def keep(self, number: int, text: str) -> None:
        self._used.append((number, text))


def _by_lines(encode: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """Encode line by line with a cache, so that an edited file costs little more than its changed lines."""
    known = lru_cache(1 << 18)(encode)
    return lambda text: [token for line in text.splitlines(keepends=True) for token in known(line)]


def _ids(tokens: list[int]) -> Ids:
    return np.array(tokens, np.int32)
