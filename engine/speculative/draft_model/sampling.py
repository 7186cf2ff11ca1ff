"""Sample the draft model's tokens with the target's settings and the noise of the target's tokens.

If both models use the same noise for the same token at the same position, they agree at temperature as often
as their distributions allow (a Gumbel coupling).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from reprise.engine.sampling.filters import keep_likely
from reprise.engine.sampling.sampler import Sampler, noise_key
from reprise.engine.speculative.translation.token_map import UNMATCHED
from reprise.engine.speculative.translation.translation import Translation
from reprise.engine.speculative.translation.translator import VocabularyPair

POSITIONS_PER_TOKEN = 2
"""Positions of the target with noise, per drafted token; after them the last position's noise is reused."""

DrawNext = Callable[[mx.array], mx.array]
"""(rows, any size) logits of the draft model -> (rows,) its ids, unevaluated. Each call draws one token."""


class DraftSampling(Protocol):
    """Samples drafts; one implementation for each way in which the vocabularies relate."""

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> DrawNext:
        """Return a function that draws num_tokens tokens for all rows, one token per call.

        sampler: the target's, for the same rows. positions: (rows,) the position of the target's next token.
        """


def make_draft_sampling(translation: Translation) -> DraftSampling:
    """Make the sampling of drafts that fits how a translation relates the vocabularies."""
    if translation.pair is None:
        return SameVocabularySampling(translation.num_target_ids)
    if translation.strategy == "shared":
        return SharedTokenSampling(translation.pair)
    return FullVocabularySampling(translation.pair)


class SameVocabularySampling:
    """Sampling for equal vocabularies: the target's sampler draws."""

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> DrawNext:
        """Implement DraftSampling."""
        ahead = iter(range(num_tokens))

        def draw(logits: mx.array) -> mx.array:
            at = next(ahead)
            return sampler.sample(_resize(logits, self._num_ids), [position + at for position in positions])

        return draw


class SharedTokenSampling:
    """Sampling of shared tokens only: the target's sampler draws among those, in the target's ids."""

    def __init__(self, pair: VocabularyPair) -> None:
        to_draft = pair.token_map.to_draft
        self._num_ids = pair.draft.size
        self._to_draft = mx.array(np.maximum(to_draft, 0))
        self._is_shared = mx.array(to_draft != UNMATCHED)

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> DrawNext:
        """Implement DraftSampling."""
        draw_target = SameVocabularySampling(self._to_draft.size).make_draw(sampler, positions, num_tokens)

        def draw(logits: mx.array) -> mx.array:
            target_logits = _resize(logits, self._num_ids)[:, self._to_draft].astype(mx.float32)
            return self._to_draft[draw_target(mx.where(self._is_shared, target_logits, -mx.inf))]

        return draw


class FullVocabularySampling:
    """Sampling of all of the draft model's tokens. Shared tokens get the target's bias, penalties and noise.

    The noise is that of the token's expected position in the target's text. To estimate the position, each
    token drafted before it counts as the number of target tokens that its text takes by itself.
    """

    def __init__(self, pair: VocabularyPair) -> None:
        to_target = pair.token_map.to_target
        self._num_ids = pair.draft.size
        self._to_target = mx.array(np.maximum(to_target, 0))
        self._is_shared = mx.array(to_target != UNMATCHED)
        self._lengths = mx.array(_count_target_tokens(pair))

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> DrawNext:
        """Implement DraftSampling."""
        adjust = self._make_adjust(sampler)
        if not sampler.random:
            return lambda logits: mx.argmax(adjust(_resize(logits, self._num_ids)), axis=-1)
        window = POSITIONS_PER_TOKEN * num_tokens
        target_keys, own_keys = (
            mx.array(
                [
                    [noise_key(salt ^ seed, position + at) for at in range(window)]
                    for seed, position in zip(sampler.seeds, positions, strict=True)
                ],
                mx.uint32,
            )
            for salt in (0, _OWN_SALT)
        )
        ahead = mx.zeros(len(positions), mx.int32)

        def draw(logits: mx.array) -> mx.array:
            nonlocal ahead
            logits = adjust(_resize(logits, self._num_ids)) / sampler.temperatures
            if any(sampler.filtered):
                logits = keep_likely(logits, sampler.settings)
            at = mx.minimum(ahead, window - 1)[:, None, None]
            target_noise, own_noise = (
                mx.vmap(lambda key, size=size: mx.random.gumbel((size,), key=key))(
                    mx.take_along_axis(keys, at, axis=1)[:, 0]
                )
                for keys, size in ((target_keys, sampler.vocab_size), (own_keys, self._num_ids))
            )
            noise = mx.where(self._is_shared, target_noise[:, self._to_target], own_noise)
            drawn = mx.argmax(logits + mx.where(sampler.noisy, noise, 0), axis=-1)
            ahead = ahead + self._lengths[drawn]
            return drawn

        return draw

    def _make_adjust(self, sampler: Sampler) -> Callable[[mx.array], mx.array]:
        """Return a function that applies the requests' bias and penalties to the logits of shared tokens."""
        bias, penalties = None, None
        if any(one is not None for one in sampler.bias):
            none = mx.zeros(sampler.vocab_size)
            dense = mx.stack([none if one is None else one for one in sampler.bias])
            bias = mx.where(self._is_shared, dense[:, self._to_target], 0)
        if any(sampler.penalties):
            penalties = [p and p.remapped(self._to_target, self._is_shared) for p in sampler.penalties]

        def adjust(logits: mx.array) -> mx.array:
            logits = logits.astype(mx.float32)
            if penalties:
                pairs = zip(penalties, logits, strict=True)
                logits = mx.stack([penalty.apply(row) if penalty else row for penalty, row in pairs])
            return logits if bias is None else logits + bias

        return adjust


_OWN_SALT = 0x6A09E667F3BCC908
"""Separates the noise of tokens that only the draft model has from the target's noise."""


def _count_target_tokens(pair: VocabularyPair) -> np.ndarray:
    """Return (draft size,) int32: about how many target tokens each token's text takes by itself."""
    counts = np.ones(pair.draft.size, np.int32)
    foreign = np.flatnonzero(pair.token_map.to_target == UNMATCHED)
    counts[foreign] = pair.target.estimate_lengths(pair.draft.pieces[token] for token in foreign.tolist())
    return np.maximum(counts, 1)


def _resize(logits: mx.array, num_ids: int) -> mx.array:
    """Cut or pad (rows, any size) logits to num_ids, since models pad their vocabularies."""
    missing = num_ids - logits.shape[-1]
    if missing > 0:
        return mx.pad(logits.astype(mx.float32), [(0, 0), (0, missing)], constant_values=float("-inf"))
    return logits[:, :num_ids]
