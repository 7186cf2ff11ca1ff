"""How many tokens of which prompt a step may prefill. Decode rows go first, so nobody's stream stalls."""

from collections.abc import Sequence

MIN_CHUNK_TOKENS = 16


def prefill_budget(num_decoding: int, step_token_budget: int, prefill_chunk_tokens: int) -> int:
    """Prompt tokens that one step may feed.

    With nobody decoding a whole chunk; otherwise what the decode rows leave of the step's budget,
    but never so little that a prompt would not get on.
    """
    if num_decoding == 0:
        return prefill_chunk_tokens
    return max(MIN_CHUNK_TOKENS, min(step_token_budget - num_decoding, prefill_chunk_tokens))


def plan_prefill(remaining: Sequence[int], budget: int) -> list[int]:
    """Share budget tokens among prompts that lack remaining[i] >= 0 tokens; returns tokens for each.

    Prompts that end within the budget go before one that does not, so a short request never waits behind a
    long prefill; but the oldest has a quarter of the budget for its own, so a long one always gets on.
    """
    chunks = [0] * len(remaining)
    if not remaining:
        return chunks
    chunks[0] = min(remaining[0], -(-budget // 4))
    budget -= chunks[0]
    order = sorted(range(len(remaining)), key=lambda i: remaining[i] - chunks[i] > budget)
    for i in order:
        more = min(remaining[i] - chunks[i], budget)
        chunks[i] += more
        budget -= more
    return chunks
