"""How the draft model's tokens are drawn: by the target's settings, with the noise of the target's tokens.

Where both draw with the noise of one and the same token at the same position, they agree at temperature as
often as their distributions let them (a Gumbel coupling).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from engine.sampling.sampler import Sampler, keep_likely, noise_key
from engine.speculative.translation.token_map import UNMATCHED
from engine.speculative.translation.translation import Translation
from engine.speculative.translation.translator import VocabularyPair

WINDOW_SHARE = 2
"""Positions that noise is made for, a drafted token; behind them the last one's is used again."""

Draw = Callable[[mx.array], mx.array]
"""(rows, any size) logits of the draft model -> (rows,) ids of its own, unevaluated, the next each time."""


class DraftSampling(Protocol):
    """What the strategies of translation differ in when they draft."""

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> Draw:
        """Drafts of num_tokens for all rows.

        sampler: the target's, for the same rows. positions: (rows,) of the target's token that comes next.
        """


def make_draft_sampling(translation: Translation) -> DraftSampling:
    """The one that a translation needs."""
    if translation.pair is None:
        return SameIds(translation.num_target_ids)
    if translation.strategy == "shared":
        return SharedIds(translation.pair)
    return OwnIds(translation.pair)


class SameIds:
    """One vocabulary: the target's sampler draws."""

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> Draw:
        """See DraftSampling."""
        ahead = iter(range(num_tokens))

        def draw(logits: mx.array) -> mx.array:
            at = next(ahead)
            return sampler.sample(_fitted(logits, self._num_ids), [position + at for position in positions])

        return draw


class SharedIds:
    """Only tokens that both have: the target's sampler draws among those, in the target's ids."""

    def __init__(self, pair: VocabularyPair) -> None:
        to_draft = pair.token_map.to_draft
        self._num_ids = pair.draft.size
        self._to_draft = mx.array(np.maximum(to_draft, 0))
        self._is_shared = mx.array(to_draft != UNMATCHED)

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> Draw:
        """See DraftSampling."""
        draw_theirs = SameIds(self._to_draft.size).make_draw(sampler, positions, num_tokens)

        def draw(logits: mx.array) -> mx.array:
            theirs = _fitted(logits, self._num_ids)[:, self._to_draft].astype(mx.float32)
            return self._to_draft[draw_theirs(mx.where(self._is_shared, theirs, -mx.inf))]

        return draw


class OwnIds:
    """All of the draft model's tokens. One that the target has too gets its bias, penalties and noise.

    The noise is that of the position at which the token is expected to stand in the target's text: what was
    drafted before it is counted by the target's tokens that it takes, each drafted token by itself.
    """

    def __init__(self, pair: VocabularyPair) -> None:
        to_target = pair.token_map.to_target
        self._num_ids = pair.draft.size
        self._to_target = mx.array(np.maximum(to_target, 0))
        self._is_shared = mx.array(to_target != UNMATCHED)
        self._lengths = mx.array(_count_target_tokens(pair))

    def make_draw(self, sampler: Sampler, positions: Sequence[int], num_tokens: int) -> Draw:
        """See DraftSampling."""
        adjust = self._adjusting(sampler)
        if not sampler.random:
            return lambda logits: mx.argmax(adjust(_fitted(logits, self._num_ids)), axis=-1)
        window = WINDOW_SHARE * num_tokens
        shared, own = (
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
            logits = adjust(_fitted(logits, self._num_ids)) / sampler.temperatures
            if sampler.filtered:
                logits = keep_likely(logits, sampler.top_k, sampler.top_p, sampler.min_p)
            at = mx.minimum(ahead, window - 1)[:, None, None]
            of_target, of_own = (
                mx.vmap(lambda key, size=size: mx.random.gumbel((size,), key=key))(
                    mx.take_along_axis(keys, at, axis=1)[:, 0]
                )
                for keys, size in ((shared, sampler.vocab_size), (own, self._num_ids))
            )
            noise = mx.where(self._is_shared, of_target[:, self._to_target], of_own)
            drawn = mx.argmax(logits + mx.where(sampler.noisy, noise, 0), axis=-1)
            ahead = ahead + self._lengths[drawn]
            return drawn

        return draw

    def _adjusting(self, sampler: Sampler) -> Callable[[mx.array], mx.array]:
        """What takes the requests' bias and penalties, those of tokens that the target has too."""
        bias, penalties = None, None
        if sampler.bias is not None:
            bias = mx.where(self._is_shared, sampler.bias[:, self._to_target], 0)
        if any(sampler.penalties):
            penalties = [p and p.of(self._to_target, self._is_shared) for p in sampler.penalties]

        def adjust(logits: mx.array) -> mx.array:
            logits = logits.astype(mx.float32)
            if penalties:
                lines = zip(penalties, logits, strict=True)
                logits = mx.stack([own.apply(line) if own else line for own, line in lines])
            return logits if bias is None else logits + bias

        return adjust


_OWN_SALT = 0x6A09E667F3BCC908
"""Tells the noise of tokens that only the draft model has from the target's."""


def _count_target_tokens(pair: VocabularyPair) -> np.ndarray:
    """(draft size,) how many of the target's tokens each token's text takes alone, about, int32."""
    counts = np.ones(pair.draft.size, np.int32)
    foreign = np.flatnonzero(pair.token_map.to_target == UNMATCHED)
    counts[foreign] = pair.target.estimate_lengths(pair.draft.pieces[token] for token in foreign.tolist())
    return np.maximum(counts, 1)


def _fitted(logits: mx.array, num_ids: int) -> mx.array:
    """(rows, any size) logits cut or padded to num_ids: models pad their vocabularies."""
    missing = num_ids - logits.shape[-1]
    if missing > 0:
        return mx.pad(logits.astype(mx.float32), [(0, 0), (0, missing)], constant_values=float("-inf"))
    return logits[:, :num_ids]
