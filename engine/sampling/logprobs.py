"""Compute tokens' log probabilities at temperature 1, before penalties, bias, grammar and filters."""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx

from engine.sampling.largest import find_largest

Likelihood = tuple[float, list[tuple[int, float]]]
"""A token's log probability, and (token id, log probability) of the likeliest tokens, the likeliest first."""


class Likelihoods:
    """The likelihoods of one step's draws, for requests that want them. On the device until they are read."""

    def __init__(self, logits: mx.array, tokens: mx.array, wanted: Sequence[int | None]) -> None:
        """Build the graph; compute nothing yet.

        logits: (draws, vocabulary). tokens: (draws,) the tokens drawn.
        wanted: (draws,) how many of the likeliest tokens to return for each draw; None for no likelihood.
        """
        self._wanted = wanted
        self._draws = [draw for draw, num in enumerate(wanted) if num is not None]
        if len(self._draws) < len(wanted):
            picked = mx.array(self._draws)
            logits, tokens = logits[picked], tokens[picked]
        logits = logits.astype(mx.float32)
        log_total = mx.logsumexp(logits, axis=-1, keepdims=True)
        self.arrays = [(mx.take_along_axis(logits, tokens[:, None], axis=-1) - log_total)[:, 0]]
        if num_top := min(max(num or 0 for num in wanted), logits.shape[-1]):
            ids = find_largest(logits, num_top)
            self.arrays += [ids, mx.take_along_axis(logits, ids, axis=-1) - log_total]

    def read(self) -> list[Likelihood | None]:
        """Wait for the device; return (draws,) likelihoods, None for draws that do not want one."""
        logprobs, *top = cast("list[list[Any]]", [array.tolist() for array in self.arrays])
        found: list[Likelihood | None] = [None] * len(self._wanted)
        for at, draw in enumerate(self._draws):
            num = self._wanted[draw] or 0
            pairs = zip(top[0][at], top[1][at], strict=True) if top else ()
            # Among ties the lower id comes first, as in find_largest().
            likeliest = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:num]
            found[draw] = logprobs[at], likeliest
        return found


def measure(logits: mx.array, tokens: mx.array, wanted: Sequence[int | None]) -> Likelihoods | None:
    """Return Likelihoods of these arguments, or None if no draw wants any."""
    return Likelihoods(logits, tokens, wanted) if any(num is not None for num in wanted) else None
