"""Chats of a workload by its name."""

import random
from collections.abc import Callable, Sequence

from bench.workloads import agent, edits, passages, plain, polish, records
from bench.workloads.chats import Chat, Workload

VERSION = 2
COLD = "_cold"
_MODULES = (records, passages, edits, agent, plain, polish)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload for module in _MODULES for workload in module.WORKLOADS
}
"""All there are, by name."""

ENGLISH = tuple(name for name in WORKLOADS if WORKLOADS[name] not in polish.WORKLOADS)
"""Those whose words the bundled model was trained on."""


def lengths_of(workload: str, asked: Sequence[int] | None = None) -> tuple[int | None, ...]:
    """The prompt lengths to run a workload at: those asked for, or its own; (None,) where none is chosen."""
    own = WORKLOADS[workload].prompt_tokens
    return tuple(asked or own) if own else (None,)


def make_chats(
    workload: str,
    count: int,
    seed: int,
    count_tokens: Callable[[str], int],
    prompt_tokens: int | None = None,
) -> list[Chat]:
    """Generate count chats of a workload.

    count_tokens: how many tokens a prompt has that is one message of the user, with all that a chat
      template adds; asked only where prompts have a length.
    prompt_tokens: about how long the first prompt is, within some 5 %; the shortest of the workload's own
      unless given.

    Raises KeyError for a workload that is unknown, ValueError for a length where none can be chosen.
    """
    family = WORKLOADS[workload]
    if prompt_tokens is not None and not family.prompt_tokens:
        raise ValueError(f"prompts of {workload} have no length that could be chosen")
    length = prompt_tokens or (family.prompt_tokens[0] if family.prompt_tokens else None)
    rng = random.Random(f"{workload.removesuffix(COLD)} {seed}")

    def grow(text_of: Callable[[int], str], most: int) -> int:
        assert length is not None, f"{workload} grows, but has no lengths"
        return _nearest(lambda number: count_tokens(text_of(number)), most, length)

    return [Chat(workload, tuple(family.make(rng, grow)), length) for _ in range(count)]


def _nearest(size_of: Callable[[int], int], most: int, wanted: int) -> int:
    """The count in [1, most] with the size nearest to that wanted, where sizes grow with counts."""
    low, high = 1, 1
    while high < most and size_of(high) < wanted:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size_of(middle) < wanted else (low, middle)
    return min((low, high), key=lambda number: abs(size_of(number) - wanted))
