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
from engine.sampling.filters import is_filtered, keep_likely
from engine.sampling.pieces import Needs, draws_per_piece, pick_logits

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


class Sampler:
    """The sampling settings of one set of rows, as arrays; replaced whenever a row is added or removed.

    rows: (rows,) each row's settings and its penalties, None if it has none.
    bias: (rows,) each row's logit bias as (vocabulary,) floats, None if it has none.
    """

    def __init__(self, rows: Sequence[tuple[Sampling, Penalties | None]], vocab_size: int) -> None:
        self.settings = [sampling for sampling, _ in rows]
        self.vocab_size = vocab_size
        self.seeds = [s.seed for s in self.settings]
        self.penalties = [penalties for _, penalties in rows]
        self.random = any(s.temperature > 0 for s in self.settings)
        self.filtered = [is_filtered(s, vocab_size) for s in self.settings]
        self.bias = [_dense_bias(s, vocab_size) for s in self.settings]
        self.temperatures = mx.array([s.temperature or 1.0 for s in self.settings])[:, None]
        self.noisy = mx.array([s.temperature > 0 for s in self.settings])[:, None]

    def sample(
        self,
        logits: mx.array,
        positions: Sequence[int],
        draws: Sequence["Draw"] | None = None,
        places: Sequence[int] | None = None,
    ) -> mx.array:
        """Sample one token per draw; return (draws,) ids, not yet evaluated.

        logits: (n, vocabulary), of any float type.
        positions: (draws,) absolute index of each token to draw.
        draws: (draws,) the row, drafted tokens and mask of each; None for one draw per row, in order, with
            nothing drafted and no mask.
        places: (draws,) index of each draw's logits; None for the order of the draws.

        Large numbers of draws are sampled piece by piece, in the memory that pieces.py counts.
        """
        if draws is None:
            draws = [Draw(row) for row in range(len(self.seeds))]
        if places is None:
            places = range(len(draws))
        # The draws of a group need the same work, so none pays for what only others need.
        groups: dict[Needs, list[int]] = {}
        for at, draw in enumerate(draws):
            groups.setdefault(self._needs(draw), []).append(at)
        tokens: list[mx.array] = []
        for needs, group in groups.items():
            size = draws_per_piece(needs.num_arrays, logits.shape[-1])
            for start in range(0, len(group), size):
                piece = group[start : start + size]
                picked = pick_logits(logits, [places[at] for at in piece], tokens[-1:])
                tokens.append(
                    self._draw(picked, [draws[at] for at in piece], [positions[at] for at in piece], needs)
                )
        if len(tokens) == 1:
            return tokens[0]
        order = np.argsort([at for group in groups.values() for at in group])
        return mx.concatenate(tokens)[mx.array(order)]

    def _draw(
        self, logits: mx.array, draws: Sequence["Draw"], positions: Sequence[int], needs: Needs
    ) -> mx.array:
        """Sample one piece of draws that all need the same work: (draws,) ids."""
        logits = self._adjust(logits.astype(mx.float32), draws, needs)
        if needs.noise:
            rows = [draw.row for draw in draws]
            logits = logits / self.temperatures[mx.array(rows)]
            if needs.filters:
                logits = keep_likely(logits, [self.settings[row] for row in rows])
            logits = logits + self._noise(rows, positions, logits.shape[-1])
        return mx.argmax(logits, axis=-1)

    def _needs(self, draw: "Draw") -> Needs:
        row = draw.row
        return Needs(
            penalties=self.penalties[row] is not None,
            bias=self.bias[row] is not None,
            mask=draw.mask is not None,
            noise=self.settings[row].temperature > 0,
            filters=self.filtered[row],
        )

    def _adjust(self, logits: mx.array, draws: Sequence["Draw"], needs: Needs) -> mx.array:
        """Apply penalties, bias and masks as needed. logits: (draws, vocabulary)."""
        if needs.penalties:
            pairs = zip((self.penalties[draw.row] for draw in draws), draws, strict=True)
            logits = mx.stack(
                [
                    penalties.apply(line, draw.drafted) if penalties else line
                    for line, (penalties, draw) in zip(logits, pairs, strict=True)
                ]
            )
        if needs.bias:
            found = (self.bias[draw.row] for draw in draws)
            logits = logits + mx.stack([bias for bias in found if bias is not None])
        if needs.mask:
            masks = np.stack([draw.mask for draw in draws if draw.mask is not None])
            logits = mx.where(mx.array(masks), logits, -mx.inf)
        return logits

    def _noise(self, rows: Sequence[int], positions: Sequence[int], size: int) -> mx.array:
        """Return the noise of all tokens, for each row and position: (draws, size)."""
        pairs = zip(rows, positions, strict=True)
        keys = mx.array([noise_key(self.seeds[row], position) for row, position in pairs], mx.uint32)
        return mx.vmap(lambda key: mx.random.gumbel((size,), key=key))(keys)


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw.

    row: index of its row. drafted: drafted tokens between the committed ones and this one.
    mask: (vocabulary,) True where a token is allowed; None if all are.
    """

    row: int
    drafted: Sequence[int] = ()
    mask: NDArray[np.bool_] | None = None


def _dense_bias(sampling: Sampling, vocab_size: int) -> mx.array | None:
    if not sampling.logit_bias:
        return None
    ids, values = zip(*sampling.logit_bias, strict=True)
    bias = mx.zeros(vocab_size)
    bias[mx.array(ids)] = mx.array(values)
    return bias
