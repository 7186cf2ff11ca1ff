"""Generated chats for benchmarks, the same everywhere for the same seed. VERSION changes when they change."""

import itertools
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reprise.bench.workloads.chats import Chat, Turn, read_prompts
from reprise.bench.workloads.generated import ENGLISH, WORKLOADS

__all__ = [
    "ENGLISH", "VERSION", "WORKLOADS", "Chat", "Turn", "lengths_of", "make_chats", "own_chats",
    "read_prompts",
]  # fmt: skip

VERSION = 3


def lengths_of(workload: str, requested: Sequence[int] | None = None) -> tuple[int | None, ...]:
    """Return the requested prompt lengths or the workload's defaults; (None,) if it has no such choice."""
    defaults = WORKLOADS[workload].prompt_tokens
    return tuple(requested or defaults) if defaults else (None,)


def make_chats(
    workload: str, count: int, seed: int, count_tokens: Callable[[str], int], prompt_tokens: int | None = None
) -> list[Chat]:
    """Generate count chats of a workload.

    count_tokens: returns the length of a prompt that is this one user message, with the chat template.
    prompt_tokens: approximate length of the first prompt, where it can be chosen; None: the shortest.
    """
    length = prompt_tokens or lengths_of(workload)[0] or 0
    rng = random.Random(f"{workload} {seed}")

    def grow(made: Iterator[Any], text_of: Callable[[list[Any]], str]) -> list[Any]:
        items: list[Any] = []

        def size(count: int) -> int:
            items.extend(itertools.islice(made, max(0, count - len(items))))
            return count_tokens(text_of(items[:count]))

        limit = next(2**power for power in itertools.count() if size(2**power) >= length)
        enough = bisect_left(range(limit), length, lo=1, key=size)
        return items[: min((max(1, enough - 1), enough), key=lambda count: abs(size(count) - length))]

    return [Chat(workload, tuple(WORKLOADS[workload].make(rng, grow)), length or None) for _ in range(count)]


def own_chats(path: Path | None, workloads: Sequence[str]) -> list[Chat] | None:
    """Return the chats in a user's file; None without a file.

    Raises ValueError for an unknown workload if there is no file; else as read_prompts() does.
    """
    unknown = [] if path else [name for name in workloads if name not in WORKLOADS]
    if unknown:
        raise ValueError(f"--workloads: {unknown[0]} is not one of {', '.join(WORKLOADS)}")
    return read_prompts(path) if path else None
