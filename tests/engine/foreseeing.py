"""A model that can draft for itself as WeDLM does, and whose masks are right as often as a test wants."""

import dataclasses
from typing import Any

import mlx.core as mx

from reprise.engine.model.loading import LoadedModel
from reprise.engine.speculative.mask_drafts import MAX_MASKS
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.support import VOCAB_SIZE, make_loaded

MASK = 4000
PEAK = 12.0


class Foreseeing:
    """A model with llama's caches whose next token follows from the last one, and whose masks know it.

    share: of the masks, by their token, that are right.
    """

    def __init__(self, model: Any, share: float) -> None:
        self.model, self.num_forwards = model, 0
        after = [[(7 * token + 3) % MASK for token in range(VOCAB_SIZE)]]
        for _ in range(MAX_MASKS):
            after.append([after[0][token] for token in after[-1]])
        self._after = mx.array(after)
        self._most_right = int(share * 100)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.num_forwards += 1
        at = mx.arange(tokens.shape[1])
        last_at = mx.cummax(mx.where(tokens == MASK, 0, at), axis=1)
        last, distance = mx.take_along_axis(tokens, last_at, axis=1), at - last_at
        # Rows that feed less are padded with their last token, and MLX checks no index.
        wanted = self._after[mx.clip(distance - 1, 0, MAX_MASKS), last]
        is_wrong = (distance > 0) & ((last * 31 + distance * 17) % 100 >= self._most_right)
        wanted = mx.where(is_wrong, (wanted + 1) % MASK, wanted)
        peaks = PEAK * (wanted[..., None] == mx.arange(VOCAB_SIZE))
        logits = 0.1 * self.model(tokens, cache=cache) + peaks
        return mx.where(mx.arange(VOCAB_SIZE) == MASK, -mx.inf, logits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def foreseeing(share: float = 0.8) -> LoadedModel:
    """Return a model with masks. share: of those that are right."""
    loaded = make_loaded("llama", lambda model: Foreseeing(model, share))
    return dataclasses.replace(loaded, info=dataclasses.replace(loaded.info, mask_token_id=MASK))


def no_lookups(_: str) -> DraftSources:
    return DraftSources({}, scored(0.0))
