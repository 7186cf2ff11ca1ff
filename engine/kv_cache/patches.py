"""Replace parts of mlx-lm's models that assume that all rows of a batch are equally long."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.convolution import Conv1d
from mlx_lm.models import bailing_hybrid, bailing_moe_linear, base, gated_delta, gemma2, llama4, ssm
from mlx_lm.models.cache import CacheList

from reprise.engine.kv_cache.buffers import GroupedKVCache, RaggedChunkedKVCache
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


Replacement = tuple[Any, str, Callable[[Any], Any]]
"""An owner, the name of its attribute, and a function that makes the new value from the old one."""


@contextmanager
def _replacing(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Replace attributes inside the block. For the thread that owns MLX."""
    originals = [getattr(owner, name) for owner, name, _ in replacements]
    try:
        for (owner, name, make), original in zip(replacements, originals, strict=True):
            setattr(owner, name, make(original))
        yield
    finally:
        for (owner, name, _), original in zip(replacements, originals, strict=True):
            setattr(owner, name, original)


Split = Callable[[mx.array], list[mx.array]]
Join = Callable[[list[mx.array]], mx.array]


def by_group(groups: Groups, classes: set[Any] | None) -> AbstractContextManager[None]:
    """Run attention group by group inside the block. classes: attention layers to run so as a whole."""
    if classes is None:
        return attention_by_part(groups.split, groups.join)
    return _replacing([(one, "__call__", partial(_layer_by_group, groups)) for one in classes])


def attention_by_part(split: Split, join: Join) -> AbstractContextManager[None]:
    """Split attention itself inside the block, where keys and values are PerGroup, into as many parts."""
    attention = partial(_attention_by_part, split, join)
    return _replacing([
        (mx.fast, "scaled_dot_product_attention", attention),
        (base, "quantized_scaled_dot_product_attention", attention),
    ])  # fmt: skip


def _attention_by_part(
    split: Split, join: Join, attention: Callable[..., mx.array]
) -> Callable[..., mx.array]:
    def attend(queries: mx.array, keys: Any, values: Any, *, mask: Any = None, **options: Any) -> mx.array:
        if not isinstance(keys, PerGroup):
            return attention(queries, keys, values, mask=mask, **options)
        masks = mask.parts if isinstance(mask, PerGroup) else [mask] * len(keys.parts)
        given = zip(split(queries), keys.parts, values.parts, masks, strict=True)
        return join([attention(q, k, v, mask=m, **options) for q, k, v, m in given])

    return attend


def _layer_by_group(groups: Groups, attend: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def attend_groups(layer: Any, *args: Any, **options: Any) -> mx.array:
        if not any(_is_grouped(one) for one in (*args, *options.values())):
            return attend(layer, *args, **options)
        all_args = [_split(one, groups) for one in args]
        all_options = {name: _split(one, groups) for name, one in options.items()}
        parts = []
        for at in range(len(groups)):
            own_options = {name: one[at] for name, one in all_options.items()}
            parts.append(attend(layer, *(one[at] for one in all_args), **own_options))
        return groups.join(parts)

    return attend_groups


def _is_grouped(value: Any) -> bool:
    return isinstance(value, GroupedKVCache | CacheList) and all(
        isinstance(cache, GroupedKVCache) for cache in leaves([value])
    )


def _split(value: Any, groups: Groups) -> Sequence[Any]:
    """Return each group's part of an argument. What is not by row goes whole to each group."""
    if isinstance(value, PerGroup):
        return value.parts
    if isinstance(value, GroupedKVCache):
        return [value.part(group) for group in groups]
    if isinstance(value, CacheList):
        members = [_split(cache, groups) for cache in value.caches]
        return [CacheList(*caches) for caches in zip(*members, strict=True)]
    if isinstance(value, mx.array) and value.ndim > 2 and len(value) == len(groups.shared.lengths):
        return groups.split(value)
    return [value] * len(groups)


@cache
def take_masks_of_rows() -> None:
    """Let all Gemma 2 models apply masks (rows, 1, width, columns) to rows. Further calls change nothing."""
    layer: Any = gemma2.Attention
    attend = layer.__call__

    def attend_rows(attention: Any, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        if mask is not None and mask.ndim == 4 and attention.repeats > 1:
            mask = mask[:, :, None]
        result: mx.array = attend(attention, x, mask, cache)
        return result

    layer.__call__ = attend_rows


class _AtZero:
    """Stands in for a cache at position 0. The model makes a mask from it that no layer uses."""

    start_position = offset = 0


class _CachesOfRows(list[Any]):
    """The caches of all layers. The model iterates over them, but asks the first by index for a position."""

    def __getitem__(self, at: Any) -> Any:
        return _AtZero if at == 0 else super().__getitem__(at)


class _ScaledAttention:
    """Wraps an attention layer, and scales its queries by position. scales: (rows, width, 1)."""

    attn_temperature_tuning = 0

    def __init__(self, attention: Any, scales: mx.array) -> None:
        self._attention = attention
        self._scales = scales

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attention, name)

    def q_proj(self, x: mx.array) -> mx.array:
        queries: mx.array = self._attention.q_proj(x)
        return (queries * self._scales).astype(queries.dtype)


@cache
def take_positions_of_rows() -> None:
    """Let all Llama 4 models take a position for each row, (rows,). Further calls change nothing."""
    model: Any = llama4.LlamaModel
    layer: Any = llama4.Attention
    run, attend = model.__call__, layer.__call__

    def run_rows(self: Any, inputs: mx.array, cache: Any = None) -> mx.array:
        if cache and isinstance(cache[0], RaggedChunkedKVCache):
            cache = _CachesOfRows(cache)
        result: mx.array = run(self, inputs, cache)
        return result

    def attend_rows(self: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        width = x.shape[1]
        if isinstance(cache, RaggedChunkedKVCache):
            mask = cache.make_mask(width, return_array=True)
        elif cache is not None and isinstance(cache.offset, mx.array) and self.attn_temperature_tuning:
            positions = cache.offset[:, None] + mx.arange(1, width + 1)
            scales = mx.log(mx.floor(positions / self.floor_scale) + 1.0) * self.attn_scale + 1.0
            self = _ScaledAttention(self, scales[..., None])
        result: mx.array = attend(self, x, mask, cache)
        return result

    model.__call__, layer.__call__ = run_rows, attend_rows


MAX_SINGLE_STEPS = 16
"""Widest forward in which Mamba 2 and gated linear attention take a step per token.

Their formulas for several tokens round otherwise.
"""

Replay = Callable[[mx.array, int], mx.array]
"""Returns the state after the first kept[r] tokens of row r. kept: (rows,), and its maximum as a number."""


@dataclass
class LayerTrace:
    """The inputs from which one layer's state was computed in a traced forward.

    before, after: the state's arrays before and after the forward.
    convolved: (input, number of columns kept as state) of each of the layer's convolutions.
    replays: (state, function that computes it again for fewer tokens) of each recurrence.
    knows_lengths: whether the layer read which rows are padded.
    """

    before: list[mx.array | None]
    after: list[mx.array | None] = field(default_factory=list)
    convolved: list[tuple[mx.array, int]] = field(default_factory=list)
    replays: list[tuple[mx.array, Replay]] = field(default_factory=list)
    knows_lengths: bool = False
    _sources: list[Replay | None] = field(default_factory=list)

    def end(self, after: Sequence[mx.array | None], width: int) -> None:
        """Note how each state array was computed. after: the arrays now. width: the forward's width."""
        self.after = list(after)
        convolved = [(x, num_held) for x, num_held in self.convolved if x.shape[1] == num_held + width]
        self._sources = []
        for array in self.after:
            source = next((replay for computed, replay in self.replays if computed is array), None)
            for at, (x, num_held) in enumerate(convolved):
                # A layer with several convolutions runs them in the order of their arrays.
                if source is None and array is not None and array.shape == (len(x), num_held, x.shape[-1]):
                    source = partial(_last_columns, convolved.pop(at)[0], num_held)
                    break
            self._sources.append(source)

    def drop_padding(self, fed: mx.array, width: int) -> list[mx.array | None]:
        """Return the state's arrays as if convolutions had seen no padding. fed: (rows,) tokens fed."""
        for idx, source in enumerate(self._sources):
            if isinstance(source, partial):
                self.after[idx] = source(fed, width)
        return list(self.after)

    def at(self, idx: int, kept: Sequence[int], widths: Sequence[int]) -> mx.array:
        """Return array idx of the state after the first kept[r] tokens of each row r: (rows, ...).

        widths: (rows,) tokens that the forward fed.
        Raises NotTracedError if the layer's computation of it was not traced.
        """
        before, after, source = self.before[idx], self.after[idx], self._sources[idx]
        assert after is not None
        if all(num in (0, width) for num, width in zip(kept, widths, strict=True)):
            return where_rows(mx.array(list(kept)) > 0, after, before)
        if source is None:
            raise NotTracedError("it is not known how a layer computes its state")
        return source(mx.array(list(kept)), max(kept))


def _last_columns(convolved: mx.array, num_held: int, kept: mx.array, _: int) -> mx.array:
    """Return a convolution's state after the first kept[r] tokens of row r."""
    places = kept[:, None] + mx.arange(num_held)
    return mx.take_along_axis(convolved, places[..., None], axis=1)


class NotTracedError(Exception):
    """A state cannot be recomputed, because its computation was not traced."""


class Tracer:
    """Records each layer's inputs to its state while a forward's graph is being built.

    current: the trace of the layer that last read its state.
    """

    def __init__(self, fed: mx.array | None) -> None:
        """Make an idle tracer. fed: (rows,) tokens that the forward adds to each; None if none is padded."""
        self.current: LayerTrace | None = None
        self._fed = fed

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace until the end of the block."""
        replacements: list[Replacement] = [
            (gated_delta, "gated_delta_ops", self._delta),
            (gated_delta, "gated_delta_kernel", self._delta),
            (ssm, "ssm_attn", self._ssm),
            (bailing_hybrid, "recurrent_gla", partial(self._gated_linear, True)),
            (bailing_moe_linear, "recurrent_gla", partial(self._gated_linear, False)),
            (Conv1d, "__call__", self._convolution),
        ]
        try:
            with _replacing(replacements):
                yield
        finally:
            self.current = None

    def _convolution(self, original: Any) -> Any:
        def call(module: Conv1d, x: mx.array) -> mx.array:
            if self.current:
                self.current.convolved.append((x, module.weight.shape[1] - 1))
            result: mx.array = original(module, x)
            return result

        return call

    def _delta(self, original: Any) -> Any:
        def call(  # noqa: PLR0913 - as mlx-lm calls it
            q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array,
            state: mx.array, mask: mx.array | None = None,
        ) -> tuple[mx.array, mx.array]:  # fmt: skip
            result: tuple[mx.array, mx.array] = original(q, k, v, g, beta, state, mask)

            def replay(kept: mx.array, num: int) -> mx.array:
                inputs = (array[:, :num] for array in (q, k, v, g, beta))
                again: mx.array = original(*inputs, state, mx.arange(num) < kept[:, None])[1]
                return again

            if self.current:
                self.current.replays.append((result[1], replay))
            return result

        return call

    def _trace_run(
        self, run: Callable[[int, mx.array | None], tuple[mx.array, mx.array]], width: int
    ) -> tuple[mx.array, mx.array]:
        """Run a recurrence over all tokens, and record how to run it over fewer.

        run: given a number of tokens, and how many of them each row has, returns outputs and state.
        """
        result = run(width, self._fed)
        if self.current:
            self.current.replays.append((result[1], lambda kept, num: run(num, kept)[1]))
        return result

    def _ssm(self, original: Any) -> Any:
        def call(  # noqa: PLR0913 - as mlx-lm calls it
            x: mx.array, A_log: mx.array, B: mx.array, C: mx.array, D: mx.array, dt: mx.array,
            dt_bias: mx.array, state: mx.array | None = None,
            time_step_limit: tuple[float, float] = (0.001, 100.0),
            mask: mx.array | None = None, lengths: mx.array | None = None, step: int = 256,
        ) -> tuple[mx.array, mx.array]:  # fmt: skip
            width = x.shape[1]
            if width == 1:
                alone: tuple[mx.array, mx.array] = original(
                    x, A_log, B, C, D, dt, dt_bias, state, time_step_limit, mask, lengths, step
                )
                return alone

            def run(num: int, real: mx.array | None) -> tuple[mx.array, mx.array]:
                if width > MAX_SINGLE_STEPS:
                    kept_mask = None if real is None else mx.arange(num) < real[:, None]
                    y, after = original(
                        x[:, :num], A_log, B[:, :num], C[:, :num], D, dt[:, :num], dt_bias, state,
                        time_step_limit, kept_mask, real, step,
                    )  # fmt: skip
                    return y, after if real is None else where_rows(real > 0, after, state)

                def take(one: slice, before: mx.array | None) -> tuple[mx.array, mx.array]:
                    taken: tuple[mx.array, mx.array] = ssm.ssm_update(
                        x[:, one],
                        A_log,
                        B[:, one],
                        C[:, one],
                        D,
                        dt[:, one],
                        dt_bias,
                        before,
                        time_step_limit,
                    )
                    return taken

                outputs, after = _by_steps(take, num, real, state)
                return mx.concatenate(outputs, axis=1), after

            # A model may pass a mask but no lengths.
            return self._trace_run(run, width)

        return call

    def _gated_linear(self, takes_mask: bool, original: Any) -> Any:
        def call(
            q: mx.array, k: mx.array, v: mx.array, g: mx.array, scale: float,
            h: mx.array | None = None, **_: Any,
        ) -> tuple[mx.array, mx.array]:  # fmt: skip
            # A mask that the model passes is made from the same widths.
            width = q.shape[2]

            def some(tokens: slice, state: mx.array | None, **options: Any) -> tuple[mx.array, mx.array]:
                inputs = (array[:, :, tokens] for array in (q, k, v))
                result: tuple[mx.array, mx.array] = original(*inputs, g=g, scale=scale, h=state, **options)
                return result

            def run(num: int, real: mx.array | None) -> tuple[mx.array, mx.array]:
                if takes_mask and width > MAX_SINGLE_STEPS:
                    real_mask = None if real is None else mx.arange(num) < real[:, None]
                    return some(slice(num), h, mask=real_mask)
                outputs, after = _by_steps(some, num, real, h)
                return mx.concatenate(outputs, axis=2), after

            return self._trace_run(run, width)

        return call


def _by_steps(
    take: Callable[[slice, mx.array | None], tuple[mx.array, mx.array]],
    num: int,
    real: mx.array | None,
    state: mx.array | None,
) -> tuple[list[mx.array], mx.array]:
    """Take a step per token; return the outputs, and the state after the first real[r] tokens of row r.

    take: given a token's place and the state before it, None for zeros, returns its output and the state.
    """
    outputs = []
    for at in range(num):
        y, then = take(slice(at, at + 1), state)
        outputs.append(y)
        state = then if real is None else where_rows(real > at, then, state)
    assert state is not None
    return outputs, state


def where_rows(rows: mx.array, new: mx.array, old: mx.array | None) -> mx.array:
    """Take rows from `new` where the booleans `rows` (rows,) are True, else from old; None means zeros."""
    old = mx.zeros_like(new) if old is None else old
    return mx.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)
