"""Divide a step's seconds for prefill among prompts. They are few, as decoding rows wait meanwhile."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_CHUNK_TOKENS = 4
"""Prompt tokens that a step feeds where nothing says how long it may take, so that prompts advance."""

STALL_STEPS = 3.0
"""Plain steps that the chunks of a step may take where these are longer than --max-stall-ms. A forward pass
of one token takes about one, and estimates have a margin: with less, a chunk would be little else."""

ALONE_S, ALONE_STEPS = 1.0, 4.0
"""Maximum seconds of a step's chunks while no row decodes, or plain steps if these take longer: how long a
cancellation or a new request waits."""

SHARE = 4
"""The oldest prompt gets 1/SHARE of the time."""

SHARE_PASSES = 2
"""Forward passes of one token that a share in every step must hold; else it is one step in SHARE."""

Seconds = Callable[[int], float]
"""Returns an upper estimate of the seconds that this many more tokens of a prompt take."""


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """Limits of one step's prefill: as many tokens as fit into seconds, but never more than max_tokens.

    min_tokens: how many are fed if not even one token fits into the seconds.
    """

    seconds: float
    min_tokens: int
    max_tokens: int

    @classmethod
    def of_step(
        cls, num_decoding: int, max_stall_ms: float, max_tokens: int, plain_s: float = 0.0
    ) -> "PrefillLimits":
        """Return the limits of a step with num_decoding rows, which the prompts make wait.

        max_stall_ms: 0 for as little prefill as possible. max_tokens: those that memory and settings allow.
        plain_s: seconds of a plain step; 0 if not known.
        """
        if num_decoding and not max_stall_ms:
            return cls(0.0, min(MIN_CHUNK_TOKENS, max_tokens), max_tokens)
        seconds = max(ALONE_S, ALONE_STEPS * plain_s)
        if num_decoding:
            seconds = max(max_stall_ms / 1000, STALL_STEPS * plain_s)
        # A token that takes longer attends to a long context, and a second one would take as long again.
        min_tokens = 1 if plain_s else MIN_CHUNK_TOKENS
        return cls(seconds, min(min_tokens, max_tokens), max_tokens)


def plan_prefill(
    remaining: Sequence[int],
    costs: Sequence[Seconds],
    limits: PrefillLimits,
    most: Sequence[int] | None = None,
    num_passed: int = 0,
) -> list[int]:
    """Divide a step's seconds among prompts that lack remaining[i] >= 0 tokens; return the tokens of each.

    remaining: by age, the oldest prompt first. costs: each prompt's seconds for a number of tokens.
    most: the maximum tokens of each prompt. num_passed: steps since the oldest prompt was fed.

    Prompts that complete within the limits are served first, then those that lack less than a quarter of what
    the oldest lacks, so that a short prompt never waits for a long one. The oldest prompt always gets a
    quarter of the seconds, so that a long prompt always advances. Where a quarter hardly pays for more than
    the forward pass, the oldest prompt gets all seconds of every fourth step instead.
    """
    chunks, spent_s = [0] * len(remaining), [0.0] * len(remaining)
    fed = [min(pair) for pair in zip(remaining, most or remaining, strict=True)]

    def extend(i: int, max_tokens: int, max_s: float) -> None:
        """Give a prompt as many tokens as fit into max_s seconds, those that it has included."""
        num_tokens = count_fitting(costs[i], min(fed[i], max_tokens), max_s)
        if num_tokens > chunks[i]:
            chunks[i], spent_s[i] = num_tokens, costs[i](num_tokens)

    if remaining and SHARE_PASSES * costs[0](1) <= limits.seconds / SHARE:
        extend(0, -(-limits.max_tokens // SHARE), limits.seconds / SHARE)
    is_due = not any(chunks) and num_passed >= SHARE - 1

    def room(i: int) -> tuple[int, float]:
        """Return the tokens and seconds that a prompt may have, those that it has included."""
        return limits.max_tokens - sum(chunks) + chunks[i], limits.seconds - sum(spent_s) + spent_s[i]

    def rank(i: int) -> tuple[bool, bool, bool]:
        """Return the smaller, the earlier the prompt is served: late are those that cannot be completed."""
        max_tokens, max_s = room(i)
        is_late = remaining[i] > min(fed[i], max_tokens) or costs[i](remaining[i]) > max_s
        return not (is_due and i == 0), is_late, SHARE * remaining[i] >= remaining[0]

    order = sorted(range(len(remaining)), key=rank)
    for i in order:
        extend(i, *room(i))
    if not any(chunks):
        for i in order:
            chunks[i] = min(fed[i], limits.min_tokens - sum(chunks))
    return chunks


def divide_tokens(remaining: Sequence[int], max_tokens: int) -> list[int]:
    """Divide max_tokens among prompts as plan_prefill() would if time were no limit."""
    limits = PrefillLimits(math.inf, 0, max_tokens)
    return plan_prefill(remaining, [lambda _: 0.0] * len(remaining), limits)


def count_fitting(cost: Callable[[int], float], max_tokens: int, max_cost: float) -> int:
    """Return the most tokens, up to max_tokens, whose cost is at most max_cost; 0 if none."""
    low, high = 0, max_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= max_cost:
            low = middle
        else:
            high = middle - 1
    return low
