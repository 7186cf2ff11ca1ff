"""What a server is asked over weeks: texts that are new, texts that are worked on, texts that come again.

The texts are the Python files of the packages installed here. Their order and their edits come from a seed.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.edits import LARGEST_FILE, SMALLEST_FILE, edit

Ids = npt.NDArray[np.int32]

EDIT, AGAIN, NEW = "edit", "again", "new"

SHARES = {EDIT: 0.5, AGAIN: 0.3, NEW: 0.2}
"""edit: a file and what to change about it; half of them files that were asked about before.
again: a file that came before, asked for without it. new: text that never came before."""

RETURNS = 0.5

QUICK_KINDS = ("values", "docstrings", "delete", "lines")
"""Edits of bench/edits.py that take no time to make."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and its answer.

    prompt, answer: token ids. kind: of SHARES. age: requests since its text last came; None for a new one.
    """

    kind: str
    prompt: Ids
    answer: Ids
    age: int | None = None


def source_files(roots: Sequence[Path], seed: int) -> list[Path]:
    """Python files that are not too small, in an order of their own for each seed."""
    paths = sorted(
        path for root in roots for path in root.rglob("*.py") if path.stat().st_size >= SMALLEST_FILE
    )
    random.Random(seed).shuffle(paths)
    return paths


def make_traffic(
    paths: Sequence[Path], encode: Callable[[str], list[int]], count: int, seed: int
) -> Iterator[Asked]:
    """count requests; the first of a longer traffic with the same seed are the same.

    Texts that come again came so many requests ago as a draw says that is even over the logarithm: some
    just now, some at the very beginning. When all files were used they are used again.
    Raises ValueError if there are no files.
    """
    if not paths:
        raise ValueError("there are no Python files of 2,500 bytes or more to make traffic of")
    rng = random.Random(f"traffic {seed}")
    texts, encode = _Texts(paths, rng), _by_lines(encode)
    for number in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        past = texts.past()
        if kind == NEW or (kind == AGAIN and past is None):
            text = texts.fresh()
            texts.keep(number, text)
            yield Asked(NEW, _ids(encode("Write a file.\n")), _ids(encode(text)))
        elif kind == AGAIN and past is not None:
            last, text = past
            texts.keep(number, text)
            yield Asked(AGAIN, _ids(encode("Write it again.\n")), _ids(encode(text)), number - last)
        else:
            age = None
            if past is not None and rng.random() < RETURNS:
                age, text = number - past[0], past[1]
            else:
                text = texts.fresh()
            edited, instruction = edit(text, rng.choice(QUICK_KINDS), rng)
            texts.keep(number, edited)
            prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
            yield Asked(EDIT, _ids(encode(prompt)), _ids(encode(f"```python\n{edited}```\n")), age)


class _Texts:
    """The files, and the texts that came so far, as they were last."""

    def __init__(self, paths: Sequence[Path], rng: random.Random) -> None:
        self.paths = paths
        self.rng = rng
        self._num_used = 0
        self._came: list[tuple[int, str]] = []

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
        """One that came before, and when: every order of magnitude of ages is as likely."""
        if not self._came:
            return None
        back = round(math.exp(math.log(len(self._came)) * self.rng.random()))
        return self._came[-max(1, min(back, len(self._came)))]

    def keep(self, number: int, text: str) -> None:
        self._came.append((number, text))


def _by_lines(encode: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """Line by line, each distinct one once: an edited file then costs little more than its edits."""
    known = lru_cache(1 << 18)(encode)
    return lambda text: [token for line in text.splitlines(keepends=True) for token in known(line)]


def _ids(tokens: list[int]) -> Ids:
    return np.array(tokens, np.int32)
