"""The interface of heads, and the parts of the target that they use.

    head    reads                                            drafts
    MTP     (state at p, token at p + 1), at position p      token by token, each from its own last state
    DFlash  the states of several layers, at position p      all in one pass, as masks behind a known token

A head knows nothing about requests: it gets arrays of any number of rows, and caches that hold them all.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial, singledispatch
from typing import Any, Protocol

import mlx.core as mx

from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.buffers import KVSlice


@dataclass
class States:
    """The target's states at consecutive positions not yet fed to the head.

    parts: arrays (positions, size), in order. num: the positions of all parts.
    """

    parts: list[mx.array] = field(default_factory=list)
    num: int = 0

    def add(self, part: mx.array) -> None:
        """Append the states of the next positions: (positions, size)."""
        self.parts.append(part)
        self.num += part.shape[0]

    def prepend_zeros(self, num: int) -> None:
        """Prepend zeros for num positions whose states are not known."""
        if num:
            self.parts.insert(0, mx.zeros((num, self.parts[0].shape[1]), self.parts[0].dtype))
            self.num += num

    def drop(self, start: int, num: int) -> None:
        """Remove num states after the first `start` ones."""
        whole = self.parts[0] if len(self.parts) == 1 else mx.concatenate(self.parts)
        # Copies: views would keep what is dropped in memory.
        self.parts = [mx.contiguous(part) for part in (whole[:start], whole[start + num :]) if part.size]
        mx.eval(self.parts)
        self.num -= num

    def take(self, num: int) -> mx.array:
        """Remove the first num states and return them: (num, size). num: >= 1."""
        assert 0 < num <= self.num
        whole = self.parts[0] if len(self.parts) == 1 else mx.concatenate(self.parts)
        self.num -= num
        self.parts = [whole[num:]] if self.num else []
        return whole[:num]


Choose = Callable[[mx.array, int], mx.array]
"""Choose tokens: gets logits (rows, places, vocabulary) and the number of the first of these places, 0 for
the first drafted token; returns ids (rows, places)."""


@dataclass(frozen=True)
class Bounds:
    """The positions of a long text that a head keeps: the first and the last.

    sink: number of first positions (attention sinks).
    window: number of last positions.
    move: shifts keys and values a number of positions earlier.
    """

    sink: int
    window: int
    move: Callable[[KVSlice, int], KVSlice]

    @property
    def most(self) -> int:
        """Number of cached positions above which those between sink and window are dropped."""
        return self.sink + 2 * self.window


class Head(Protocol):
    """Drafts from the target's hidden states.

    taps: the layers of the target whose outputs the head reads, counted from 0; empty if it reads the state
        after the final norm.
    max_drafted: maximum tokens of a draft.
    bounds: which positions of long texts the head keeps; None for all.
    """

    taps: tuple[int, ...]
    max_drafted: int
    bounds: Bounds | None

    def make_cache(self) -> list[Any]:
        """Make empty caches for one row, one per layer of the head."""

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        """Feed the states of committed positions; the caches keep their keys and values.

        states: (rows, width, taps * hidden), or (rows, width, hidden) without taps. following: (rows, width)
            the token after each position.
        """

    def draft(
        self, states: mx.array, last: mx.array, caches: Sequence[Any], num: int, choose: Choose
    ) -> mx.array:
        """Draft the tokens that come after `last`.

        states: (rows, taps * hidden) of the newest computed position. last: (rows,) the committed token after
            it, which has no state yet. num: tokens to draft, 1 to max_drafted.

        Returns (rows, num) ids, for the places after last. Feeds each cache the newest position, once and
        alone, then removes it with trim(). A cache of many rows has no trim(): its owner must remove it.
        """


@dataclass(frozen=True)
class TargetEnds:
    """The target's embedding and output head.

    embed: ids (any,) to (any, hidden). logits: states after the final norm (any, hidden) to
        (any, vocabulary).
    """

    embed: Callable[[mx.array], mx.array]
    logits: Callable[[mx.array], mx.array]


class DraftCache:
    """Wraps one layer's cache while a draft is made, with mlx-lm's cache protocol.

    Only the newest position is written to the underlying cache, so rows may end in different columns.
    Drafted tokens are appended to a copy of the columns that this first write returned.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        # A cache of one row counts on while it is written.
        self._start: int | mx.array = cache.offset
        self._num_fed = 0
        self._held: tuple[mx.array, mx.array] | None = None
        self._mask: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """The position of the next token: an int if all rows agree, else (rows,)."""
        return self._start + self._num_fed

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append keys and values (rows, heads, width, head_dim) and return all, these last."""
        if self._held is None:
            self._held = self._cache.update_and_fetch(keys, values)
        else:
            held_keys, held_values = self._held
            self._held = (
                mx.concatenate([held_keys, keys], axis=2),
                mx.concatenate([held_values, values], axis=2),
            )
        self._num_fed += keys.shape[2]
        return self._held

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """Return the attention mask of the next N tokens: booleans, or None if all see everything.

        The first call is for the newest position alone. Its mask is the underlying cache's, with the window.
        Later tokens see what that position saw, and each other.
        """
        if self._held is None:
            mask = self._cache.make_mask(N, return_array=return_array, window_size=window_size)
            assert N == 1 and not isinstance(mask, str)
            self._mask = mask
        elif self._mask is not None:
            seen = mx.ones((*self._mask.shape[:-1], N), mx.bool_)
            self._mask = mx.concatenate([self._mask, seen], axis=-1)
        return self._mask

    def give_back(self) -> None:
        """Remove the newest position from the underlying cache, if that has trim()."""
        if self._held is not None and hasattr(self._cache, "trim"):
            self._cache.trim(1)


class _StandIn:
    """Stands in for a module: behaves differently when called, and like the module otherwise."""

    def __init__(self, module: Any, call: Callable[..., mx.array]) -> None:
        self._module, self._call = module, call

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def find_ends(model: Any) -> TargetEnds:
    """Return a model's embedding and output head, including the model's processing of embeddings and logits.

    Raises ValueError if the model's embedding, layers or body are not named as usual in mlx-lm.
    """
    owner = owner_of_body(model)
    body = owner and owner["model"]
    if body is None or not {"embed_tokens", "layers"} <= body.keys():
        raise ValueError(f"{type(model).__name__} keeps its embedding in a place of its own")
    embed = body["embed_tokens"]
    some = mx.arange(8)[None]
    # Some models scale or norm embeddings before the first layer, but none that can be a pipeline, which has
    # its first layer on another machine.
    if not is_pipeline(model) and not mx.array_equal(entering := _enter(body, some), embed(some)).item():
        assert entering.shape == (1, 8, embed(some).shape[-1])
        embed = partial(_enter, body)

    def logits(states: mx.array) -> mx.array:
        # The model itself applies its output head, as some scale or cap what it returns.
        dict.__setitem__(owner, "model", _StandIn(body, lambda *_, **__: states))
        try:
            found: mx.array = owner(mx.zeros(states.shape[:-1], mx.int32))
        finally:
            dict.__setitem__(owner, "model", body)
        return found

    return TargetEnds(embed, logits)


class _Entered(Exception):  # noqa: N818
    """Carries the first layer's input."""


def _enter(body: Any, ids: mx.array) -> mx.array:
    """Return the input of a body's first layer for ids (rows, width): (rows, width, hidden)."""
    layers = body["layers"]
    first = layers[0]

    def enter(states: mx.array, *_: Any, **__: Any) -> mx.array:
        raise _Entered(states)

    layers[0] = _StandIn(first, enter)
    try:
        body(ids)
    except _Entered as entered:
        states: mx.array = entered.args[0]
        return states
    finally:
        layers[0] = first
    raise ValueError(f"{type(body).__name__} does not run its layers")


def is_pipeline(model: Any) -> bool:
    """Whether some of the model's layers are on other machines."""
    owner = owner_of_body(model)
    return owner is not None and getattr(owner["model"], "pipeline_size", 1) > 1


@singledispatch
def owner_of_body(model: Any) -> Any:
    """Return the submodel with the body (`model`) and output head; None if there is none."""
    while "model" not in model and "language_model" in model:
        model = model["language_model"]
    return model if "model" in model else None


_OUTPUTS = "_tapped_outputs"


class TappedStates:
    """The states that the tapped modules returned.

    outputs: for each module, its states (rows, width, hidden) in each forward pass, in order.
    """

    def __init__(self, num_modules: int) -> None:
        self.outputs: list[list[mx.array]] = [[] for _ in range(num_modules)]

    def states(self) -> list[mx.array]:
        """Return the states of each forward pass: (rows, width, modules * hidden)."""
        joined = zip(*self.outputs, strict=True)
        return [each[0] if len(each) == 1 else mx.concatenate(list(each), axis=-1) for each in joined]

    def of_rows(self, wanted: Sequence[int]) -> list[mx.array | None]:
        """Copy each row's first wanted[row] states: (wanted[row], size), not evaluated; None for 0.

        There was one forward pass over all rows, or one for each row, in their order.
        """
        passes = self.states()
        # For each row the states of a pass, and where its own begin among them.
        of_rows = [(states[0], 0) for states in passes]
        if len(passes) == 1:
            width, flat = passes[0].shape[1], passes[0].flatten(0, 1)
            of_rows = [(flat, row * width) for row in range(len(wanted))]
        # Not views, which would keep the states of all rows.
        return [
            mx.take(states, mx.arange(start, start + num), axis=0) if num else None
            for (states, start), num in zip(of_rows, wanted, strict=True)
        ]


class Taps:
    """Hooks on the modules of a target whose outputs a head reads.

    layers: numbers of the tapped layers; empty to tap the model's body, which returns the normed state.
    Raises ModelError if the model has no such modules.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        name = type(model).__name__
        if layers:
            if is_pipeline(model):
                raise ModelError(
                    f"the head reads the layers {', '.join(map(str, layers))}, and other machines have some "
                    "of them; use --split tensor"
                )
            held = getattr(model, "layers", [])
            if max(layers) >= len(held):
                raise ModelError(
                    f"a head reads layer {max(layers)}, counted from 0; {name} has {len(held)} layers"
                )
            self._modules = [held[layer] for layer in layers]
        else:
            owner = owner_of_body(model)
            if owner is None:
                raise ModelError(f"{name} keeps its body in a place of its own: no head can read its states")
            self._modules = [owner["model"]]

    @contextmanager
    def tapping(self) -> Iterator[TappedStates]:
        """Collect the states of forward passes built in the block."""
        tapped = TappedStates(len(self._modules))
        kinds: list[type] = [type(module) for module in self._modules]
        try:
            for module, kind, outputs in zip(self._modules, kinds, tapped.outputs, strict=True):
                module.__dict__[_OUTPUTS] = outputs
                module.__class__ = _tapped_kind(kind)
            yield tapped
        finally:
            for module, kind in zip(self._modules, kinds, strict=True):
                module.__class__ = kind
                module.__dict__.pop(_OUTPUTS, None)


@cache
def _tapped_kind(kind: type) -> type:
    """Return a subclass of a module's class that records its outputs."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        returned = kind.__call__(self, *args, **kwargs)
        # Some layers return more than their state, behind it.
        self.__dict__[_OUTPUTS].append(returned[0] if isinstance(returned, tuple) else returned)
        return returned

    return type(kind.__name__, (kind,), {"__call__": call})
