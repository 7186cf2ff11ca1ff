"""Compute a layer some tokens at a time, so that a step does not grow with the square of a text.

    keys and values of all tokens -> some queries, which attend to all -> the layer's states of these

The layer itself is called in both parts. What it returns in the first is not asked for, and never computed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from reprise.engine.embedding.masks import Mask, Masks


class _Stand:
    """Takes the place of a layer's cache. offset: tokens before those that are fed.

    whole: the keys and values that the layer attends to; None for those that it is given.
    made: the keys and values that it was given.
    """

    def __init__(self, offset: int, whole: Sequence[mx.array] | None = None) -> None:
        self.offset = offset
        self.made: Sequence[mx.array] = ()
        self._whole = whole

    def update_and_fetch(self, *added: mx.array) -> Sequence[mx.array]:
        self.made = added
        return self._whole or added


class CutLayer:
    """A layer under way. Its states are the same to the last bit, however many tokens are computed at a time.

    hidden: the states before it, (texts, tokens, size). mask: of the pass. before: what stands before the
    tokens in this layer; None if nothing does. grows: whether `before` keeps what it is fed, as a cache does.
    """

    def __init__(
        self, layer: Callable[..., mx.array], hidden: mx.array, mask: Masks, before: Any, *, grows: bool
    ) -> None:
        self._layer, self._hidden, self._mask, self._before = layer, hidden, mask, before
        self._grows = grows
        self._num_before = before.offset if before is not None else 0
        self._made: list[Sequence[mx.array]] = []
        self._whole: Sequence[mx.array] | None = None
        self._fed: list[mx.array] = []
        self._num_keyed = self._num_fed = 0

    @property
    def states(self) -> mx.array | None:
        """The states after the layer; None before all are computed."""
        return mx.concatenate(self._fed, axis=1) if self._num_fed == self._hidden.shape[1] else None

    def advance(self, most: int) -> tuple[Sequence[mx.array], int]:
        """Return arrays to evaluate next, for up to `most` tokens of each text, and how many these are.

        The number is 0 if they are keys and values only.
        """
        width = self._hidden.shape[1]
        if self._whole is None and not self._grows:
            start, self._num_keyed = self._num_keyed, min(width, self._num_keyed + most)
            stand = _Stand(self._num_before + start)
            self._layer(self._hidden[:, start : self._num_keyed], Masks(None, None), stand)
            self._made.append(stand.made)
            if self._num_keyed == width:
                whole = [mx.concatenate(list(one), axis=2) for one in zip(*self._made, strict=True)]
                self._whole = self._before.update_and_fetch(*whole) if self._before is not None else whole
                self._made = []
                return self._whole, 0
            return stand.made, 0
        start, end = self._num_fed, min(width, self._num_fed + most)
        self._num_fed = end
        cache = self._before
        is_causal = isinstance(self._mask.whole, str)
        seen = self._num_before + end if is_causal else self._num_before + width
        if self._whole is not None:
            cache = _Stand(self._num_before + start, [one[:, :, :seen] for one in self._whole])
        masks = Masks(*(_of_rows(one, start, end, seen) for one in self._mask))
        self._fed.append(self._layer(self._hidden[:, start:end], masks, cache))
        return (self._fed[-1],), end - start


def _of_rows(mask: Mask | None, start: int, end: int, seen: int) -> Mask | None:
    """Return a mask's part for some tokens. seen: leading tokens that they may attend to."""
    if mask is None or isinstance(mask, str):
        return mask
    rows = mask if mask.shape[-2] == 1 else mask[..., start:end, :]
    return rows[..., :seen]
