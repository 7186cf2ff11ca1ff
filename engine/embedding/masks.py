"""Masks: to what each token of a pass attends. Texts are padded at their end."""

import math
from typing import Literal, NamedTuple

import mlx.core as mx

Mask = mx.array | Literal["causal"]


class Masks(NamedTuple):
    """Masks of a pass: of layers that attend to all tokens, and of local ones."""

    whole: Mask
    local: Mask


def attend_to_all(num_tokens: mx.array, width: int) -> mx.array:
    """Return (texts, 1, 1, width), true for tokens, false for padding. num_tokens: (texts,)."""
    return (mx.arange(width)[None] < num_tokens[:, None])[:, None, None]


def attend_near(num_tokens: mx.array, width: int, window: int) -> mx.array:
    """Return (texts, 1, width, width), true for tokens that are at most window away, to either side."""
    is_token = attend_to_all(num_tokens, width)
    # Padding attends to padding: attending to nothing is not a number, and that would spread to all.
    return (_distances(width) <= window) & (is_token | ~is_token.swapaxes(-1, -2))


def attend_before(width: int, window: int) -> mx.array:
    """Return (width, width), true where a row's token attends: itself and the window - 1 before it."""
    at = mx.arange(width)
    before = at[:, None] - at
    return (before >= 0) & (before < window)


def attend_less_with_distance(
    num_tokens: mx.array, width: int, num_heads: int, dtype: mx.Dtype = mx.float32
) -> mx.array:
    """Return the (texts, heads, width, width) addends of scores: each head's slope times the distance.

    Source: Press et al. 2021, in both directions, with their slopes for heads that are no power of 2.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (index + 1) / power) for index in range(power)]
    slopes += [2 ** (-4 * (2 * index + 1) / power) for index in range(num_heads - power)]
    added = -mx.array(slopes)[:, None, None] * _distances(width)
    return mx.where(attend_to_all(num_tokens, width), added, -mx.inf).astype(dtype)


def _distances(width: int) -> mx.array:
    at = mx.arange(width)
    return mx.abs(at[:, None] - at)
