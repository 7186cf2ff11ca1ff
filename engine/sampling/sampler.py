"""Choose tokens from logits, with noise that depends only on the seed and the absolute position.

    token = argmax(adjusted logits / temperature + gumbel(key(seed, position)))

This draws exactly from the softmax. A seeded request gets the same tokens alone or in any batch, with or
without drafts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from reprise.engine.interface.request import Sampling
from reprise.engine.sampling.logits import (
    LIKELIHOOD_ARRAYS,
    Needs,
    Penalties,
    draws_per_portion,
    keep_likely,
    pick_logits,
)

LEAST_LOGIT = -1e9
"""Replaces an impossible token's logit, so that its product with the probability is 0."""


def find_entropies(logits: mx.array, places: Sequence[int], after: Sequence[mx.array]) -> mx.array:
    """Return the entropies of the distributions at temperature 1: (places,) float32, in nats.

    logits: (n, vocabulary). places: which of the n to take. Many are computed in batches, as in logits.py.
    after: arrays to compute first, so that they and the entropies do not need memory at the same time.
    """
    size = draws_per_portion(LIKELIHOOD_ARRAYS, logits.shape[-1])
    found: list[mx.array] = []
    for start in range(0, len(places), size):
        picked = pick_logits(logits, places[start : start + size], found[-1:] or after).astype(mx.float32)
        log_probs = mx.maximum(picked - mx.logsumexp(picked, axis=-1, keepdims=True), LEAST_LOGIT)
        found.append(-mx.sum(mx.exp(log_probs) * log_probs, axis=-1))
    return mx.concatenate(found) if found else mx.array([], mx.float32)


Portions = list[tuple[Needs, list[int]]]
"""Each sampling batch's work and the indices of its draws."""

_MASK_64 = (1 << 64) - 1
_FORBIDDEN = -1e5
"""The bias of tokens that are chosen only if a grammar allows no other. Not lower: among several of them, the
likelier is still to be told from the others in float32."""


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


class Ends(NamedTuple):
    """The tokens that end an answer. model: the model's. own: added by the request."""

    model: Collection[int]
    own: Collection[int]


NO_ENDS = Ends((), ())


class RowSampling:
    """How one row's tokens are sampled. Made once per row, and kept while other rows come and go.

    settings: the request's. is_filtered: whether any of the request's filters has an effect.
    penalties: the row's token counts; None if no penalty has an effect.
    bias: (vocabulary,) float32, added to the row's logits; None if there is no bias.
    early_bias: the bias before position early_end, where the answer must not end; None if it may always end.
    """

    def __init__(
        self,
        settings: Sampling,
        vocab_size: int,
        prompt: Sequence[int] = (),
        answer: Sequence[int] = (),
        ends: Ends = NO_ENDS,
    ) -> None:
        self.settings = settings
        limits = settings.top_p < 1 or settings.min_p > 0 or 0 < settings.top_k < vocab_size
        self.is_filtered = settings.temperature > 0 and limits
        self.penalties: Penalties | None = None
        if settings.has_penalties:
            self.penalties = Penalties(settings, prompt, answer, vocab_size)
        never = ends.model if settings.ignores_eos else ()
        self.bias = _dense_bias(settings, vocab_size, never)
        early = (*ends.model, *ends.own)
        self.early_bias = _dense_bias(settings, vocab_size, early) if settings.min_tokens else None
        self.early_end = len(prompt) + settings.min_tokens

    def bias_at(self, position: int) -> mx.array | None:
        """Return the bias on the logits of the token at an absolute position; None if there is none."""
        return self.early_bias if self.early_bias is not None and position < self.early_end else self.bias


class Sampler:
    """The sampling settings of one set of rows, as arrays; replaced whenever a row is added or removed.

    rows: (rows,) made before, so that the cost of making a sampler does not grow with a request's input.
    """

    def __init__(self, rows: Sequence[RowSampling], vocab_size: int) -> None:
        self.settings = [row.settings for row in rows]
        self.vocab_size = vocab_size
        self.seeds = [s.seed for s in self.settings]
        self.penalties = [row.penalties for row in rows]
        self.random = any(s.temperature > 0 for s in self.settings)
        self.filtered = [row.is_filtered for row in rows]
        self.bias = [row.bias for row in rows]
        self._rows = list(rows)
        self._one_per_row = [Draw(row) for row in range(len(rows))]
        self._has_early_bias = any(row.early_bias is not None for row in rows)
        # By the size of the vocabulary.
        self._plain_portions: dict[int, Portions] = {}
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

        Many draws are sampled in batches, within the memory that logits.py counts.
        """
        if draws is None:
            draws, portions = self._one_per_row, self._portions_of_rows(positions, logits.shape[-1])
        else:
            portions = self._portions(draws, positions, logits.shape[-1])
        if places is None:
            places = range(len(draws))
        tokens: list[mx.array] = []
        for needs, portion in portions:
            picked = pick_logits(logits, [places[at] for at in portion], tokens[-1:])
            tokens.append(
                self._draw(picked, [draws[at] for at in portion], [positions[at] for at in portion], needs)
            )
        if len(tokens) == 1:
            return tokens[0]
        order = np.argsort([at for _, portion in portions for at in portion])
        return mx.concatenate(tokens)[mx.array(order)]

    def _portions_of_rows(self, positions: Sequence[int], size: int) -> Portions:
        """Return the sampling batches of one draw per row. They differ by step only if a bias does."""
        if self._has_early_bias or size not in self._plain_portions:
            self._plain_portions[size] = self._portions(self._one_per_row, positions, size)
        return self._plain_portions[size]

    def _portions(self, draws: Sequence["Draw"], positions: Sequence[int], size: int) -> Portions:
        """Divide draws into sampling batches. size: of the logits' vocabulary."""
        # The draws of a group need the same work, so none pays for what only others need.
        groups: dict[Needs, list[int]] = {}
        for at, draw in enumerate(draws):
            groups.setdefault(self._needs(draw, positions[at]), []).append(at)
        portions: Portions = []
        for needs, group in groups.items():
            num = draws_per_portion(needs.num_arrays, size)
            portions += [(needs, group[start : start + num]) for start in range(0, len(group), num)]
        return portions

    def _draw(
        self, logits: mx.array, draws: Sequence["Draw"], positions: Sequence[int], needs: Needs
    ) -> mx.array:
        """Sample one batch of draws that all need the same work: (draws,) ids."""
        logits = self._adjust(logits.astype(mx.float32), draws, positions, needs)
        if needs.noise:
            rows = [draw.row for draw in draws]
            logits = logits / self.temperatures[mx.array(rows)]
            if needs.filters:
                logits = keep_likely(logits, [self.settings[row] for row in rows])
            logits = logits + self._noise(rows, positions, logits.shape[-1])
        return mx.argmax(logits, axis=-1)

    def _needs(self, draw: "Draw", position: int) -> Needs:
        row = draw.row
        return Needs(
            penalties=self.penalties[row] is not None,
            bias=self._rows[row].bias_at(position) is not None,
            mask=draw.mask is not None,
            noise=self.settings[row].temperature > 0,
            filters=self.filtered[row],
        )

    def _adjust(
        self, logits: mx.array, draws: Sequence["Draw"], positions: Sequence[int], needs: Needs
    ) -> mx.array:
        """Apply penalties, bias and masks as needed. logits: (draws, vocabulary)."""
        if needs.penalties:
            lines = []
            for line, draw in zip(logits, draws, strict=True):
                penalties = self.penalties[draw.row]
                lines.append(penalties.apply(line, draw.drafted) if penalties else line)
            logits = mx.stack(lines)
        if needs.bias:
            pairs = zip(draws, positions, strict=True)
            found = (self._rows[draw.row].bias_at(position) for draw, position in pairs)
            logits = logits + mx.stack([bias for bias in found if bias is not None])
        if needs.mask:
            given = [draw.mask for draw in draws if draw.mask is not None]
            on_host = [mask for mask in given if not isinstance(mask, mx.array)]
            whole = len(on_host) == len(given)
            masks = mx.array(np.stack(on_host)) if whole else mx.stack([mx.array(mask) for mask in given])
            # inf where a token is allowed, else -inf. Not where(), as in Penalties.apply().
            logits = mx.minimum(logits, (masks.astype(mx.float32) - 0.5) * mx.inf)
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
    mask: (vocabulary,) True where a token is allowed; None if all are. On the device if it depends on a token
        in flight.
    """

    row: int
    drafted: Sequence[int] = ()
    mask: NDArray[np.bool_] | mx.array | None = None


def _dense_bias(sampling: Sampling, vocab_size: int, forbidden: Collection[int]) -> mx.array | None:
    """Return a request's bias on the logits: (vocabulary,). forbidden: tokens that must not be chosen."""
    if not (sampling.logit_bias or sampling.allowed or forbidden):
        return None
    num = len(sampling.logit_bias)
    pairs = np.fromiter(chain.from_iterable(sampling.logit_bias), np.float64, 2 * num).reshape(num, 2)
    bias = np.zeros(vocab_size, np.float32)
    bias[pairs[:, 0].astype(np.int64)] = pairs[:, 1]
    is_forbidden = np.full(vocab_size, bool(sampling.allowed))
    is_forbidden[list(sampling.allowed)] = False
    # A tokenizer may name an end token that the model does not have.
    is_forbidden[[token for token in forbidden if token < vocab_size]] = True
    return mx.array(np.where(is_forbidden, np.float32(_FORBIDDEN), bias))
