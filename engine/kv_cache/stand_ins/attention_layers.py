"""Run attention layers once per group of rows, for models that compute attention from their keys themselves.

With latent attention (MLA), for example, a model multiplies keys by weights first. The weights of attention
are then read once per group, and those of all other layers still once for all rows.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import CacheList

from reprise.engine.kv_cache.buffers import GroupedKVCache
from reprise.engine.kv_cache.groups import Groups, PerGroup
from reprise.engine.kv_cache.per_row import leaves


def attention_classes(model: Any) -> set[Any]:
    """Return the classes of the attention layers: the outermost modules in a layer that take a cache."""
    classes = set()
    for layer in model.layers:
        takers = [module for module in layer.modules() if module is not layer and _takes_cache(module)]
        inner = {id(part) for module in takers for part in module.modules() if part is not module}
        classes |= {type(module) for module in takers if id(module) not in inner}
    return classes


def _takes_cache(module: Module) -> bool:
    return "cache" in inspect.signature(type(module).__call__).parameters


@contextmanager
def layers_by_group(groups: Groups, classes: set[Any]) -> Iterator[None]:
    """Run attention layers of these classes group by group inside the block. For the thread that owns MLX."""
    if groups.is_single:
        yield
        return
    originals = {one: one.__call__ for one in classes}
    try:
        for one, attend in originals.items():
            one.__call__ = _by_group(attend, groups)
        yield
    finally:
        for one, attend in originals.items():
            one.__call__ = attend


def _by_group(attend: Callable[..., mx.array], groups: Groups) -> Callable[..., mx.array]:
    def attend_groups(layer: Any, *args: Any, **options: Any) -> mx.array:
        if not any(_is_grouped(one) for one in (*args, *options.values())):
            return attend(layer, *args, **options)
        all_args = [_split(one, groups) for one in args]
        all_options = {name: _split(one, groups) for name, one in options.items()}
        parts = [
            attend(
                layer, *(one[at] for one in all_args), **{name: one[at] for name, one in all_options.items()}
            )
            for at in range(len(groups))
        ]
        return groups.join(parts)

    return attend_groups


def _is_grouped(value: Any) -> bool:
    return isinstance(value, GroupedKVCache | CacheList) and all(
        isinstance(cache, GroupedKVCache) for cache in leaves([value])
    )


def _split(value: Any, groups: Groups) -> Sequence[Any]:
    """Return each group's part of an argument; all of it, for each group, of what is not by row."""
    if isinstance(value, PerGroup):
        return value.parts
    if isinstance(value, GroupedKVCache):
        return [value.part(group) for group in groups]
    if isinstance(value, CacheList):
        members = [_split(cache, groups) for cache in value.caches]
        return [CacheList(*caches) for caches in zip(*members, strict=True)]
    if isinstance(value, mx.array) and value.ndim > 2 and len(value) == groups.num_rows:
        return groups.split(value)
    return [value] * len(groups)
