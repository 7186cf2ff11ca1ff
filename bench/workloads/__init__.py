"""Generated chats for benchmarks, the same everywhere for the same seed. VERSION changes when they change.

    chats = make_chats("json_rag", count=4, seed=1, count_tokens=count, prompt_tokens=600)
    chats[0].turns[0].messages, chats[0].turns[0].reference

Every turn with one right answer has it as its reference; the answers in the chat history are references too.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.workloads import agent, edits, lookups, plain, polish
from bench.workloads.chats import Chat, Message, Turn, Workload, read_prompts, render, render_turn

__all__ = [
    "ENGLISH", "VERSION", "WORKLOADS", "Chat", "Message", "Turn", "Workload", "lengths_of", "make_chats",
    "own_chats", "read_prompts", "render", "render_turn",
]  # fmt: skip

VERSION = 2
COLD = "_cold"
_MODULES = (lookups, edits, agent, plain, polish)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload for module in _MODULES for workload in module.WORKLOADS
}
"""All workloads, by name."""

ENGLISH = tuple(name for name in WORKLOADS if WORKLOADS[name] not in polish.WORKLOADS)
"""Workloads whose words the bundled model was trained on."""


def lengths_of(workload: str, requested: Sequence[int] | None = None) -> tuple[int | None, ...]:
    """Return the requested prompt lengths or the workload's defaults; (None,) if it has no such choice."""
    defaults = WORKLOADS[workload].prompt_tokens
    return tuple(requested or defaults) if defaults else (None,)


def make_chats(
    workload: str,
    count: int,
    seed: int,
    count_tokens: Callable[[str], int],
    prompt_tokens: int | None = None,
) -> list[Chat]:
    """Generate count chats of a workload.

    count_tokens: returns the length of a prompt with this one user message, including the chat template;
      called only for workloads with a choice of length.
    prompt_tokens: approximate length of the first prompt, within about 5 %; by default the workload's
    shortest.

    Raises KeyError for an unknown workload, ValueError if a length is given but cannot be chosen.
    """
    family = WORKLOADS[workload]
    if prompt_tokens is not None and not family.prompt_tokens:
        raise ValueError(f"the prompt length of {workload} cannot be chosen")
    length = prompt_tokens or (family.prompt_tokens[0] if family.prompt_tokens else None)
    rng = random.Random(f"{workload.removesuffix(COLD)} {seed}")

    def grow(text_of: Callable[[int], str], max_count: int) -> int:
        assert length is not None, f"{workload} calls grow() but defines no prompt_tokens"
        return _nearest(lambda number: count_tokens(text_of(number)), max_count, length)

    return [Chat(workload, tuple(family.make(rng, grow)), length) for _ in range(count)]


def _nearest(size_of: Callable[[int], int], max_count: int, wanted: int) -> int:
    """Return the count in [1, max_count] whose size is nearest to wanted; sizes grow with counts."""
    low, high = 1, 1
    while high < max_count and size_of(high) < wanted:
        low, high = high, min(2 * high, max_count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size_of(middle) < wanted else (low, middle)
    return min((low, high), key=lambda number: abs(size_of(number) - wanted))


def own_chats(path: Path | None, workloads: Sequence[str]) -> list[Chat] | None:
    """Return the chats in a user's file; if path is None, check the names of workloads and return None.

    Raises OSError and ValueError as read_prompts does, and ValueError for an unknown workload.
    """
    if path is not None:
        return read_prompts(path)
    for name in workloads:
        if name not in WORKLOADS:
            raise ValueError(f"--workloads: {name} is not one of {', '.join(WORKLOADS)}")
    return None
