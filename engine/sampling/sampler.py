"""Choose tokens from logits, with noise that depends only on the seed and the absolute position.

    token = argmax(adjusted logits / temperature + gumbel(key(seed, position)))

This draws exactly from the softmax. A seeded request gets the same tokens alone or in any batch, with or
without drafts.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine.request import Sampling

_MASK_64 = (1 << 64) - 1


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Return the two 32-bit words of MLX's random key for one position of one seeded sequence.

    seed: any integer, taken modulo 2**64. position: absolute index of the token to be drawn, >= 0.
    Source: splitmix64 (Steele et al. 2014), applied twice so that the keys of adjacent seeds are unrelated.
    """
    mixed = _splitmix64(_splitmix64(seed & _MASK_64) + position)
    return mixed >> 32, mixed & 0xFFFFFFFF


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def count_tokens(tokens: Sequence[int], vocab_size: int) -> mx.array:
    """Count how often each token occurs: (vocabulary,) int32."""
    counts = mx.zeros(vocab_size, mx.int32)
    return counts.at[mx.array(list(tokens), mx.int32)].add(1) if tokens else counts


class Penalties:
    """One row's token counts, kept on the device because the host may not have read the newest token yet.

    in_prompt: (vocabulary,) bool, tokens that occur in the prompt.
    counts: (vocabulary,) int32, how often each token occurs in the answer.
    num_counted: tokens of the answer that are in counts.
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int], vocab_size: int
    ) -> None:
        self.sampling = sampling
        self.in_prompt = count_tokens(prompt, vocab_size) > 0
        self.counts = count_tokens(answer, vocab_size)
        self.num_counted = len(answer)

    def observe(self, tokens: mx.array) -> None:
        """Count more tokens of the answer. tokens: (n,) int, n >= 1."""
        self.counts = self.counts.at[tokens].add(1)
        self.num_counted += tokens.size

    def remapped(self, tokens: mx.array, are_counted: mx.array) -> "Penalties":
        """Return a copy of the counts as they are now, for the ids of another vocabulary of n tokens.

        tokens: (n,) the id in this vocabulary that each id of the other one stands for.
        are_counted: (n,) bool, False where there is no such id; those count as never seen.
        """
        other = copy(self)
        other.in_prompt = self.in_prompt[tokens] & are_counted
        other.counts = mx.where(are_counted, self.counts[tokens], 0)
        return other

    def apply(self, logits: mx.array, drafted: Sequence[int] = ()) -> mx.array:
        """Apply the three penalties to (vocabulary,) logits, counting drafted tokens as if committed."""
        s = self.sampling
        counts = self.counts.at[mx.array(list(drafted), mx.int32)].add(1) if drafted else self.counts
        if s.repetition_penalty != 1.0:
            seen = self.in_prompt | (counts > 0)
            harder = mx.where(logits > 0, logits / s.repetition_penalty, logits * s.repetition_penalty)
            logits = mx.where(seen, harder, logits)
        counted = counts.astype(mx.float32)
        return logits - s.frequency_penalty * counted - s.presence_penalty * (counted > 0)


def needs_penalties(sampling: Sampling) -> bool:
    """Return whether any penalty has an effect."""
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


class Sampler:
    """The sampling settings of one set of rows, as arrays; replaced whenever a row is added or removed.

    rows: (rows,) each row's settings and its penalties, None if it has none.
    """

    def __init__(self, rows: Sequence[tuple[Sampling, Penalties | None]], vocab_size: int) -> None:
        settings = [sampling for sampling, _ in rows]
        self.vocab_size = vocab_size
        self.seeds = [s.seed for s in settings]
        self.penalties = [penalties for _, penalties in rows]
        self.random = any(s.temperature > 0 for s in settings)
        self.filtered = any(_is_filtered(s, vocab_size) for s in settings)
        self.bias = _dense_bias(settings, vocab_size)
        temperatures = [s.temperature for s in settings]
        self.temperatures = mx.array([t or 1.0 for t in temperatures])[:, None]
        self.noisy = mx.array([t > 0 for t in temperatures])[:, None]
        self.top_k = mx.array([min(s.top_k, vocab_size) or vocab_size for s in settings])[:, None]
        self.top_p = mx.array([s.top_p for s in settings])[:, None]
        self.min_p = mx.array([s.min_p for s in settings])[:, None]

    def sample(
        self, logits: mx.array, positions: Sequence[int], draws: Sequence["Draw"] | None = None
    ) -> mx.array:
        """Sample one token per draw; return (draws,) ids, not yet evaluated.

        logits: (draws, vocabulary), of any float type.
        positions: (draws,) absolute index of each token to draw.
        draws: (draws,) the row, drafted tokens and mask of each; None for one draw per row, in order, with
            nothing drafted and no mask.
        """
        logits = logits.astype(mx.float32)
        rows: mx.array | slice = slice(None)
        if draws is None:
            draws = [Draw(row) for row in range(len(self.seeds))]
        else:
            rows = mx.array([draw.row for draw in draws])
        if any(self.penalties):
            penalties = [self.penalties[draw.row] for draw in draws]
            logits = mx.stack(
                [
                    p.apply(row_logits, draw.drafted) if p else row_logits
                    for p, row_logits, draw in zip(penalties, logits, draws, strict=True)
                ]
            )
        if self.bias is not None:
            logits = logits + self.bias[rows]
        if any(draw.mask is not None for draw in draws):
            all_allowed = np.ones(logits.shape[-1], np.bool_)
            masks = np.stack([all_allowed if draw.mask is None else draw.mask for draw in draws])
            logits = mx.where(mx.array(masks), logits, -mx.inf)
        if not self.random:
            return mx.argmax(logits, axis=-1)
        logits = logits / self.temperatures[rows]
        if self.filtered:
            logits = keep_likely(logits, self.top_k[rows], self.top_p[rows], self.min_p[rows])
        seeds = [self.seeds[draw.row] for draw in draws]
        keys = mx.array([noise_key(s, p) for s, p in zip(seeds, positions, strict=True)], mx.uint32)
        size = logits.shape[-1]
        noise = mx.vmap(lambda key: mx.random.gumbel((size,), key=key))(keys)
        return mx.argmax(logits + mx.where(self.noisy[rows], noise, 0), axis=-1)


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw.

    row: index of its row. drafted: drafted tokens between the committed ones and this one.
    mask: (vocabulary,) True where a token is allowed; None if all are.
    """

    row: int
    drafted: Sequence[int] = ()
    mask: NDArray[np.bool_] | None = None


def keep_likely(logits: mx.array, top_k: mx.array, top_p: mx.array, min_p: mx.array) -> mx.array:
    """Set the logits of each row's unlikely tokens to -inf: keep the top k, of those the top p, then min p.

    logits: (rows, vocabulary), divided by the temperature. top_k, top_p, min_p: (rows, 1) each.
    The likeliest token is always kept, and so are tokens that tie with the last one kept.
    """
    ordered = -mx.sort(-logits, axis=-1)
    rank = mx.arange(logits.shape[-1])[None]
    ordered = mx.where(rank < top_k, ordered, -mx.inf)
    probabilities = mx.softmax(ordered, axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    # The sum has rounding errors. A row without top_p may be here because of another row's filters, and must
    # not lose tokens to rounding.
    within = (top_p >= 1) | (before < top_p)
    kept = (rank == 0) | (within & (probabilities >= min_p * probabilities[:, :1]))
    lowest = mx.min(mx.where(kept, ordered, mx.inf), axis=-1, keepdims=True)
    return mx.where(logits >= lowest, logits, -mx.inf)


def _is_filtered(s: Sampling, vocab_size: int) -> bool:
    return s.temperature > 0 and (s.top_p < 1 or s.min_p > 0 or 0 < s.top_k < vocab_size)


def _dense_bias(settings: Sequence[Sampling], vocab_size: int) -> mx.array | None:
    if not any(s.logit_bias for s in settings):
        return None
    bias = mx.zeros((len(settings), vocab_size))
    for row, s in enumerate(settings):
        if s.logit_bias:
            ids = mx.array([token for token, _ in s.logit_bias])
            bias[row, ids] = mx.array([value for _, value in s.logit_bias])
    return bias
