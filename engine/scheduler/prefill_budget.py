"""Share a step's token budget among prompts. Decoding rows take precedence, so that no stream stalls."""

from collections.abc import Sequence

MIN_CHUNK_TOKENS = 16


def prefill_budget(num_decoding: int, step_token_budget: int, prefill_chunk_tokens: int) -> int:
    """Return how many prompt tokens one step may feed.

    A whole chunk if no row decodes; otherwise what the decoding rows leave of the step's budget, but at
    least MIN_CHUNK_TOKENS, so that prompts always advance.
    """
    if num_decoding == 0:
        return prefill_chunk_tokens
    return max(MIN_CHUNK_TOKENS, min(step_token_budget - num_decoding, prefill_chunk_tokens))


def plan_prefill(remaining: Sequence[int], budget: int) -> list[int]:
    """Share budget tokens among prompts that lack remaining[i] >= 0 tokens; returns each one's share.

    Prompts that complete within the budget are served first, so that a short prompt never waits for a long
    one. The oldest prompt always gets a quarter of the budget, so that a long one always advances.
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
