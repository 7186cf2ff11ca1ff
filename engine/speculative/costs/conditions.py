"""The conditions that a step's cost depends on besides its rows and widths."""

from typing import NamedTuple

from reprise.engine.interface.request import GenerationRequest

FIRST_CONTEXT_TOKENS = 128

GREEDY, NOISY, ADJUSTED, MASKED = range(4)
"""Work of sampling a token: the highest logit; noise too; filters, penalties, bias or log probabilities
too; a grammar's mask too, for which every token is fetched before the next step."""


class Conditions(NamedTuple):
    """The conditions of a step. Every part only ever adds to the cost.

    context: class of the longest row's length; see context_class().
    sampling: the highest sampling_class() of any row.
    """

    context: int = 0
    sampling: int = GREEDY


USUAL = Conditions()
"""The conditions under which costs are measured in advance."""


def context_class(num_tokens: int) -> int:
    """Return the class of a context's length: 0 below 128 tokens, and one more for every doubling."""
    return (num_tokens // FIRST_CONTEXT_TOKENS).bit_length()


def sampling_class(request: GenerationRequest) -> int:
    """Return the class of the work that sampling a request's tokens takes, from GREEDY up to MASKED."""
    s = request.sampling
    if request.grammar and request.grammar.trigger is None:
        return MASKED
    is_filtered = s.temperature > 0 and (s.top_p < 1 or s.min_p > 0 or s.top_k > 0)
    has_penalties = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1
    if is_filtered or has_penalties or s.has_bias or request.top_logprobs is not None:
        return ADJUSTED
    return NOISY if s.temperature > 0 else GREEDY
