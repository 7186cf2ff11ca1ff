"""Keep the likely tokens of each row: top_k, top_p and min_p, without sorting the vocabulary.

A row keeps the tokens at or above its *lowest* logit, so ties are kept together. Top k gives that logit as
the k-th largest, min p as a distance from the maximum. Top p needs the order of the tokens, but only near the
boundary: half of the candidates at a time are ruled out until few are left to sort.

A row's result is the same alone, in any batch, and at any drafted position: probabilities are summed as
integers, because the order in which a device adds floats depends on the number of rows.
"""

import math
from collections.abc import Sequence

import mlx.core as mx

from reprise.engine.interface.request import Sampling
from reprise.engine.sampling.largest import find_largest

MAX_SORTED = 512
"""On processors, at most this many candidates per row are sorted; of more, half are ruled out at a time."""

LOG2_E = math.log2(math.e)

WEIGHT_ONE = 2.0**44
"""The integer weight of a row's likeliest token. A sum over 2**19 tokens still fits into 63 bits."""


def is_filtered(sampling: Sampling, vocab_size: int) -> bool:
    """Return whether any filter has an effect on a vocabulary of this size."""
    s = sampling
    return s.temperature > 0 and (s.top_p < 1 or s.min_p > 0 or 0 < s.top_k < vocab_size)


def keep_likely(logits: mx.array, settings: Sequence[Sampling]) -> mx.array:
    """Set the logits of each row's unlikely tokens to -inf: keep the top k, of those the top p, then min p.

    logits: (rows, vocabulary) float32, divided by the temperature. settings: (rows,) each row's filters.
    The likeliest token is always kept, and so are tokens that tie with the last one kept.
    """
    highest = mx.max(logits, axis=-1, keepdims=True)
    log_min_p = [math.log(s.min_p) if s.min_p > 0 else -math.inf for s in settings]
    lowest = highest + mx.array(log_min_p)[:, None]
    for (top_k, has_top_p), rows in _group(settings, logits.shape[-1]).items():
        places = mx.array(rows)
        is_all = len(rows) == len(settings)
        candidates = logits if is_all else logits[places]
        if top_k:
            candidates = mx.take_along_axis(candidates, find_largest(candidates, top_k), axis=-1)
        if has_top_p:
            top_p = mx.array([settings[row].top_p for row in rows])[:, None]
            found = _lowest_of_top_p(candidates, top_p)
        else:
            found = mx.min(candidates, axis=-1, keepdims=True)
        lowest = mx.maximum(lowest, found) if is_all else lowest.at[places].maximum(found)
    # Not minimum(): where the bound is NaN because a logit is infinite, the maximum has to stay.
    return mx.where(logits >= mx.where(lowest <= highest, lowest, highest), logits, -mx.inf)


def _group(settings: Sequence[Sampling], vocab_size: int) -> dict[tuple[int, bool], list[int]]:
    """Group rows by top_k, 0 for no limit, and by whether they have a top_p; rows with neither are left out.

    The shape of a row's computation then depends on its own settings only.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for row, s in enumerate(settings):
        key = (s.top_k if s.top_k < vocab_size else 0, s.top_p < 1)
        if any(key):
            groups.setdefault(key, []).append(row)
    return groups


def _lowest_of_top_p(candidates: mx.array, top_p: mx.array) -> mx.array:
    """Return the lowest logit that top_p keeps, +inf if it keeps none: (rows, 1).

    candidates: (rows, n), in any order. A candidate is kept if those above it have a share below top_p.
    """
    highest = mx.max(candidates, axis=-1, keepdims=True)

    def weigh(logits: mx.array) -> mx.array:
        # Not exp(): on processors MLX's takes more than twice as long.
        return (mx.power(2.0, (logits - highest) * LOG2_E) * WEIGHT_ONE).astype(mx.int64)

    total = mx.sum(weigh(candidates), axis=-1, keepdims=True)
    # Rounding must not lift the limit above the total, or tokens without any weight would be kept.
    limit = mx.minimum((total.astype(mx.float32) * top_p).astype(mx.int64), total)
    above = mx.zeros_like(total)
    while _can_halve(size := candidates.shape[-1]):
        num_upper = size // 2
        num_lower = size - num_upper
        # If the size is odd, the upper half begins with the lower half's likeliest, which does no harm there.
        halves = mx.partition(candidates, num_upper, axis=-1)
        above_lower = above + mx.sum(weigh(halves[:, num_lower:]), axis=-1, keepdims=True)
        is_in_lower = above_lower < limit
        candidates = mx.where(is_in_lower, halves[:, :num_lower], halves[:, num_upper:])
        above = mx.where(is_in_lower, above_lower, above)
    candidates = mx.sort(candidates, axis=-1)
    above = above + mx.cumsum(weigh(candidates), axis=-1, reverse=True, inclusive=False)
    return mx.min(mx.where(above < limit, candidates, mx.inf), axis=-1, keepdims=True)


def _can_halve(size: int) -> bool:
    """Return whether halving this many candidates costs less than sorting them."""
    # On GPUs, MLX's partition is itself a sort.
    return size > MAX_SORTED and mx.default_device() == mx.Device(mx.cpu)
