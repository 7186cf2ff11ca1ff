"""Make the masks of a pass: which tokens each token attends to. Texts are padded at their end."""

import math
from typing import Literal, NamedTuple

import mlx.core as mx

Mask = mx.array | Literal["causal"]


class Masks(NamedTuple):
    """The masks of a pass: one for layers that attend to all tokens, and one for local layers.

    None: for keys and values alone.
    """

    whole: Mask | None
    local: Mask | None


def attend_to_all(num_tokens: mx.array, width: int) -> mx.array:
    """Return booleans (texts, 1, 1, width), false for padding. num_tokens: (texts,) tokens of each text."""
    return (mx.arange(width)[None] < num_tokens[:, None])[:, None, None]


def attend_near(num_tokens: mx.array, width: int, window: int) -> mx.array:
    """Return booleans (texts, 1, width, width), true for tokens up to window away, to either side."""
    is_token = attend_to_all(num_tokens, width)
    # Padding attends to padding: attending to nothing is not a number, and that would spread to all.
    return (_distances(width) <= window) & (is_token | ~is_token.swapaxes(-1, -2))


def attend_before(width: int, window: int) -> mx.array:
    """Return booleans (width, width), true for the token itself and the window - 1 tokens before it."""
    at = mx.arange(width)
    before = at[:, None] - at
    return (before >= 0) & (before < window)


def attend_less_with_distance(
    num_tokens: mx.array, width: int, num_heads: int, dtype: mx.Dtype = mx.float32
) -> mx.array:
    """Return what to add to the scores, (texts, heads, width, width): minus each head's slope times distance.

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
