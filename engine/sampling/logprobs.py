"""Compute tokens' log probabilities at temperature 1, before penalties, bias, grammar and filters."""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx

from reprise.engine.sampling.largest import find_largest
from reprise.engine.sampling.portions import LIKELIHOOD_ARRAYS, draws_per_portion, pick_logits

Likelihood = tuple[float, list[tuple[int, float]]]
"""A token's log probability, and (token id, log probability) of the likeliest tokens, the likeliest first."""


LEAST_LOGPROB = -9999.0
"""The log probability of an impossible token, as in OpenAI's API: JSON has no infinity."""


class Likelihoods:
    """The likelihoods of one step's draws, for requests that want them; on the device until fetched."""

    def __init__(
        self,
        logits: mx.array,
        tokens: mx.array,
        wanted: Sequence[int | None],
        places: Sequence[int] | None = None,
    ) -> None:
        """Build the graph; compute nothing yet.

        logits: (n, vocabulary). tokens: (draws,) the tokens drawn.
        wanted: (draws,) how many of the likeliest tokens to return for each draw; None for no likelihood.
        places: (draws,) index of each draw's logits; None for the order of the draws.
        """
        self._wanted = wanted
        self._draws = [draw for draw, num in enumerate(wanted) if num is not None]
        vocab_size = logits.shape[-1]
        num_top = min(max(num or 0 for num in wanted), vocab_size)
        size = draws_per_portion(LIKELIHOOD_ARRAYS, vocab_size)
        portions: list[list[mx.array]] = []
        for start in range(0, len(self._draws), size):
            portion = self._draws[start : start + size]
            at = [places[draw] for draw in portion] if places is not None else portion
            picked = pick_logits(logits, at, portions[-1] if portions else [])
            drawn = tokens if len(portion) == len(wanted) else tokens[mx.array(portion)]
            portions.append(_measure(picked.astype(mx.float32), drawn, num_top))
        self.arrays = [mx.concatenate(list(parts)) for parts in zip(*portions, strict=True)]

    def fetch(self) -> list[Likelihood | None]:
        """Wait for the device; return (draws,) likelihoods, None where a draw wants none."""
        logprobs, *top = cast("list[list[Any]]", [array.tolist() for array in self.arrays])
        found: list[Likelihood | None] = [None] * len(self._wanted)
        for at, draw in enumerate(self._draws):
            num = self._wanted[draw] or 0
            pairs = zip(top[0][at], top[1][at], strict=True) if top else ()
            # Among ties the lower id comes first, as in find_largest().
            likeliest = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:num]
            found[draw] = logprobs[at], likeliest
        return found


def measure(
    logits: mx.array,
    tokens: mx.array,
    wanted: Sequence[int | None],
    places: Sequence[int] | None = None,
) -> Likelihoods | None:
    """Prepare the likelihoods of drawn tokens, as Likelihoods() does; None if no draw wants any."""
    return Likelihoods(logits, tokens, wanted, places) if any(num is not None for num in wanted) else None


def _measure(logits: mx.array, tokens: mx.array, num_top: int) -> list[mx.array]:
    """Return the tokens' log probabilities and, if num_top, the ids and log probabilities of the likeliest.

    logits: (n, vocabulary) float32. tokens: (n,).
    """
    log_total = mx.logsumexp(logits, axis=-1, keepdims=True)
    logprobs = (mx.take_along_axis(logits, tokens[:, None], axis=-1) - log_total)[:, 0]
    measured = [mx.maximum(logprobs, LEAST_LOGPROB)]
    if num_top:
        ids = find_largest(logits, num_top)
        measured += [ids, mx.maximum(mx.take_along_axis(logits, ids, axis=-1) - log_total, LEAST_LOGPROB)]
    return measured
