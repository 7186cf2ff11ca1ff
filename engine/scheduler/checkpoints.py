"""Choose lengths of a long prompt at which state is kept, so that later prompts can part from it anywhere.

State cannot be cut, so a prompt that parts from this one is computed from the last such length on.
"""

from bisect import bisect_right
from collections.abc import Sequence

MAX_GAP_TOKENS = 1024
"""Maximum tokens between two of these lengths near the prompt's end, where most prompts part."""

NUM_RUNGS = 16
"""Further away the gaps grow, unless all of them take little memory: a gap is at most 1/NUM_RUNGS of what
follows it."""


def choose_rungs(
    fixed: Sequence[int],
    borders: Sequence[int],
    start: int,
    end: int,
    min_gap: int = 0,
    num_rungs: int = NUM_RUNGS,
) -> list[int]:
    """Return lengths between start and end, in order, with gaps that grow toward the start.

    A length is the last fixed one within its gap, else the last border in the gap's second half, else the
    gap's end.
    fixed: lengths at which state is kept in any case. borders: lengths where messages begin. Both in order.
    min_gap: tokens that a gap has at least, if more than MAX_GAP_TOKENS. num_rungs: see NUM_RUNGS.
    """
    rungs: list[int] = []
    at = start
    while (gap := max(MAX_GAP_TOKENS, min_gap, (end - at) // num_rungs)) < end - at:
        at = _last_within(fixed, at, at + gap) or _last_within(borders, at + gap // 2, at + gap) or at + gap
        rungs.append(at)
    return rungs


def _last_within(lengths: Sequence[int], after: int, limit: int) -> int:
    """Return the last of the ordered lengths in (after, limit]; 0 if there is none."""
    place = bisect_right(lengths, limit)
    return lengths[place - 1] if place and lengths[place - 1] > after else 0
