"""Compute how uncertain a model is of a token: the entropy of its distribution."""

from collections.abc import Sequence

import mlx.core as mx

from reprise.engine.sampling.portions import LIKELIHOOD_ARRAYS, draws_per_portion, pick_logits

LEAST_LOGIT = -1e9
"""Takes the place of an impossible token's logit, whose product with its probability must be 0."""


def find_entropies(logits: mx.array, places: Sequence[int], after: Sequence[mx.array]) -> mx.array:
    """Return the entropies of the distributions at temperature 1: (places,) float32, in nats.

    logits: (n, vocabulary). places: which of the n to take; many are done in portions, as in portions.py.
    after: arrays to be computed first, so that they and the entropies do not need memory at the same time.
    """
    size = draws_per_portion(LIKELIHOOD_ARRAYS, logits.shape[-1])
    found: list[mx.array] = []
    for start in range(0, len(places), size):
        picked = pick_logits(logits, places[start : start + size], found[-1:] or after).astype(mx.float32)
        log_probs = mx.maximum(picked - mx.logsumexp(picked, axis=-1, keepdims=True), LEAST_LOGIT)
        found.append(-mx.sum(mx.exp(log_probs) * log_probs, axis=-1))
    return mx.concatenate(found) if found else mx.array([], mx.float32)
