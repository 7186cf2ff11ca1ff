"""Share the seconds that one step has for prompts. Decoding rows wait for them, so they are few."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_CHUNK_TOKENS = 4
"""Prompt tokens that a step feeds if even one takes longer than rows may wait: prompts must advance."""

ALONE_S = 1.0
"""Maximum seconds of a step's chunks while no row decodes: how long a cancellation or a new request waits."""

MIN_ALONE_TOKENS = 64
"""Prompt tokens that a step feeds while no row decodes, even if they take longer: each forward pass has a
cost of its own. Not more: a cancellation and a stop wait for them."""

Seconds = Callable[[int], float]
"""Returns an upper estimate of the seconds that this many more tokens of a prompt take."""


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """What one step may spend on prompts: seconds, but never more than max_tokens.

    min_tokens: fed even if they take longer; if rows wait, only if not even one token fits into the seconds.
    """

    seconds: float
    min_tokens: int
    max_tokens: int
    do_rows_wait: bool

    @classmethod
    def of_step(cls, num_decoding: int, max_stall_ms: float, max_tokens: int) -> "PrefillLimits":
        """Return the limits of a step with num_decoding rows, which the prompts make wait.

        max_tokens: that memory and settings allow.
        """
        if num_decoding:
            return cls(max_stall_ms / 1000, min(MIN_CHUNK_TOKENS, max_tokens), max_tokens, True)
        return cls(ALONE_S, min(MIN_ALONE_TOKENS, max_tokens), max_tokens, False)


def plan_prefill(
    remaining: Sequence[int],
    costs: Sequence[Seconds],
    limits: PrefillLimits,
    most: Sequence[int] | None = None,
) -> list[int]:
    """Share a step's seconds among prompts that lack remaining[i] >= 0 tokens; returns each one's tokens.

    most: the maximum tokens of each.

    Prompts that complete within the limits are served first, then those that lack less than a quarter of what
    the oldest lacks, so that a short prompt never waits for a long one. The oldest prompt always gets a
    quarter of the seconds, so that a long one always advances.
    """
    chunks, spent_s = [0] * len(remaining), [0.0] * len(remaining)
    fed = [min(pair) for pair in zip(remaining, most or remaining, strict=True)]
    is_kept = limits.do_rows_wait and remaining and costs[0](1) <= limits.seconds
    min_tokens = 1 if is_kept else limits.min_tokens

    def extend(i: int, max_tokens: int, max_s: float) -> None:
        """Give a prompt as many tokens as fit into max_s seconds, those that it has included."""
        num_tokens = count_fitting(costs[i], min(fed[i], max_tokens), max_s)
        if num_tokens > chunks[i]:
            chunks[i], spent_s[i] = num_tokens, costs[i](num_tokens)

    if remaining:
        extend(0, -(-limits.max_tokens // 4), limits.seconds / 4)
        if not chunks[0] and fed[0]:
            chunks[0] = min(fed[0], -(-min_tokens // 4), limits.max_tokens)
            spent_s[0] = costs[0](chunks[0])

    def room(i: int) -> tuple[int, float]:
        """Return the tokens and seconds that a prompt may have, those that it has included."""
        return limits.max_tokens - sum(chunks) + chunks[i], limits.seconds - sum(spent_s) + spent_s[i]

    def is_late(i: int) -> bool:
        """Whether the prompt cannot be completed in this step."""
        max_tokens, max_s = room(i)
        return remaining[i] > min(fed[i], max_tokens) or costs[i](remaining[i]) > max_s

    order = sorted(range(len(remaining)), key=lambda i: (is_late(i), 4 * remaining[i] >= remaining[0]))
    for i in order:
        extend(i, *room(i))
    for i in order:
        chunks[i] += max(0, min(fed[i] - chunks[i], min_tokens - sum(chunks)))
    return chunks


def share_tokens(remaining: Sequence[int], max_tokens: int) -> list[int]:
    """Share max_tokens among prompts as plan_prefill() would if time were no limit."""
    limits = PrefillLimits(math.inf, 0, max_tokens, do_rows_wait=False)
    return plan_prefill(remaining, [lambda _: 0.0] * len(remaining), limits)


def count_fitting(cost: Callable[[int], float], max_tokens: int, max_cost: float) -> int:
    """Return the most tokens, at most max_tokens, that cost at most max_cost; may be 0."""
    low, high = 0, max_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= max_cost:
            low = middle
        else:
            high = middle - 1
    return low
