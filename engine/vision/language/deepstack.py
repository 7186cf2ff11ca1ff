"""Add features behind the first layers of a language model, while a graph is built."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mlx.core as mx

_ADDED = "_features_to_add"


@contextmanager
def features_behind(layers: Sequence[Any], at: mx.array, deep: Sequence[mx.array]) -> Iterator[None]:
    """Add features to the states that the first layers return, inside the block.

    at: (n,) indices, among the tokens of one row, of those that get features. deep: (n, hidden) for each of
        the first layers.
    """
    changed: list[tuple[Any, type]] = [(layer, type(layer)) for layer, _ in zip(layers, deep, strict=False)]
    try:
        for (layer, kind), features in zip(changed, deep, strict=True):
            layer.__dict__[_ADDED] = at, features
            layer.__class__ = _adding(kind)
        yield
    finally:
        for layer, kind in changed:
            layer.__class__ = kind
            layer.__dict__.pop(_ADDED, None)


@cache
def _adding(kind: type) -> type:
    """Return a class of layers of this kind that add features to what they return."""

    def call(self: Any, *args: Any, **kwargs: Any) -> mx.array:
        states: mx.array = kind.__call__(self, *args, **kwargs)
        at, features = self.__dict__[_ADDED]
        return states.at[:, at].add(features.astype(states.dtype)[None])

    return type(kind.__name__, (kind,), {"__call__": call})
