"""The interface of heads, and the parts of the target that they use.

    head    reads                                            drafts
    MTP     (state at p, token at p + 1), at position p      token by token, each from its own last state
    EAGLE   the same, with the states of several layers      the same
    DFlash  the states of several layers, at position p      all in one pass, as masks behind a known token
    Gemma's (state at p, token at p + 1), and the target's   token by token, each from its own last state and
            keys and values up to p                          at the same position

A kind of head has a module of its own, named after it, which describes how it is published (`Published`).

A head knows nothing about requests: it gets arrays of any number of rows, and caches that hold them all.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial, singledispatch
from typing import Any, Protocol

import mlx.core as mx
from mlx.nn.layers.base import Module

from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import HeadKind
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
    reads_target: whether it has no caches, but attends to the target's, so that it is never fed. In draft()
        caches are then two NextTokenViews: of the target's last layer with full attention, and of its last
        one with a window.
    """

    taps: tuple[int, ...]
    max_drafted: int
    bounds: Bounds | None
    reads_target: bool

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

    embed: ids (any,) to the input of the first layer (any, hidden).
    logits: states after the final norm (any, hidden) to (any, vocabulary).
    raw_embed, raw_logits: the same without what the target does to its embedding's and output head's numbers.
    """

    embed: Callable[[mx.array], mx.array]
    logits: Callable[[mx.array], mx.array]
    raw_embed: Callable[[mx.array], mx.array]
    raw_logits: Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class Shape:
    """The target's sizes, which a head must fit.

    name: the target's name, for people. config: its config.json.
    """

    name: str
    config: Mapping[str, Any]
    num_layers: int
    vocab_size: int


@dataclass(frozen=True)
class Target(Shape):
    """A loaded target model. ends: its embedding and output head."""

    ends: TargetEnds


class MisfitError(ValueError):
    """A head was made for another target; the message says how it shows."""


@dataclass(frozen=True)
class Published:
    """How a kind of head is published in a folder of its own.

    name: for people. draft_type: what requests and settings call it.
    describes: returns whether a config.json is of this kind.
    make: makes a head with random weights from its config.json, the target, and the places of the published
        arrays. Raises MisfitError, or AttributeError, KeyError, TypeError or ValueError if the configuration
        lacks an entry or has a wrong one.
    place: returns the place in the head of an array by its published name; "" if it is not used.
    convert: changes published arrays, by place, to those of the head; given config.json too.
    """

    name: str
    draft_type: HeadKind
    describes: Callable[[Mapping[str, Any]], bool]
    make: Callable[[Mapping[str, Any], Target, Collection[str]], "HeadModule"]
    place: Callable[[str], str]
    convert: Callable[[dict[str, mx.array], Mapping[str, Any]], dict[str, mx.array]] = lambda arrays, _: (
        arrays
    )


def check_rope(rope: Mapping[str, Any]) -> None:
    """Raise ValueError if mlx-lm cannot rotate rows of different lengths together in this way."""
    if (rope.get("type") or rope.get("rope_type")) == "dynamic":
        raise ValueError("rope_type dynamic, with which rows of different lengths cannot draft together")


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's part of a configuration; all of it if it has no such part."""
    return dict(config.get("text_config") or config)


def check_size(name: str, value: Any, due: Any) -> None:
    """Raise MisfitError if a size in a head's configuration is not the target's."""
    if value != due:
        raise MisfitError(f"its {name} is {value}, that of the model {due}")


def check_vocabulary(size: int, target: Shape) -> None:
    """Raise MisfitError if a head is for another number of tokens than the target's, padded or not."""
    if size != text_config(target.config).get("vocab_size"):
        check_size("vocab_size", size, target.vocab_size)


def check_taps(taps: Sequence[int], target: Shape) -> None:
    """Raise MisfitError if a head reads layers that the target does not have."""
    if outside := [tap for tap in taps if not 0 <= tap < target.num_layers]:
        raise MisfitError(f"it reads layers {outside} of the model's {target.num_layers}")


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

    @property
    def keys(self) -> mx.array:
        """All keys so far. Settable, like the values: mlx-lm's DeepSeek V3.2 assigns both."""
        assert self._held is not None
        return self._held[0]

    @keys.setter
    def keys(self, keys: mx.array) -> None:
        self._held = keys, self.values

    @property
    def values(self) -> mx.array:
        """All values so far."""
        assert self._held is not None
        return self._held[1]

    @values.setter
    def values(self, values: mx.array) -> None:
        self._held = self.keys, values

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

    def make_block_mask(
        self, places: int, window: int | None, is_causal: bool, slides: bool
    ) -> mx.array | str | None:
        """Return the attention mask of a block of places behind the newest position: see make_mask().

        Call it before that position is written. window: contexts that the block's first place sees; None for
        all. is_causal: whether a place sees only places before it. slides: whether it sees as many contexts
        less as it is places behind the first.
        """
        make_mask = self._cache.make_mask
        if slides and window is not None:
            each = [
                make_mask(1, return_array=True, window_size=size) for size in range(window, 0, -1)[:places]
            ]
            seen = mx.concatenate(each + [mx.zeros_like(each[0])] * (places - len(each)), axis=-2)
        else:
            seen = make_mask(1, return_array=False, window_size=window)
            if seen is None:
                return "causal" if is_causal else None
        own = mx.tri(places, dtype=mx.int32) > 0 if is_causal else mx.ones((1, places), mx.bool_)
        num = max(seen.shape[-2], own.shape[-2])
        parts = [mx.broadcast_to(one, (*seen.shape[:-2], num, one.shape[-1])) for one in (seen, own)]
        return mx.concatenate(parts, axis=-1)

    def give_back(self) -> None:
        """Remove the newest position from the underlying cache, if that has trim()."""
        if self._held is not None and hasattr(self._cache, "trim"):
            self._cache.trim(1)


class HeadModule(Module):
    """The base of heads: a draft writes each cache once."""

    reads_target = False

    def __init__(self, ends: TargetEnds, max_drafted: int) -> None:
        super().__init__()
        self.max_drafted = max_drafted
        self.bounds: Bounds | None = None
        self._ends = ends

    def draft(
        self, states: mx.array, last: mx.array, caches: Sequence[Any], num: int, choose: Choose
    ) -> mx.array:
        """Draft the tokens that come after `last`; see Head."""
        drafting = [DraftCache(one) for one in caches]
        drafted = self._draft(states[:, None], last[:, None], drafting, num, choose)
        for one in drafting:
            one.give_back()
        return drafted

    def _draft(
        self, states: mx.array, last: mx.array, caches: list[DraftCache], num: int, choose: Choose
    ) -> mx.array:
        """Draft from states (rows, 1, size) and the tokens after them (rows, 1)."""
        raise NotImplementedError


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
    name = name_of_body(owner or {})
    body = owner and owner[name]
    if body is None or not {BODIES[name], "layers"} <= body.keys():
        raise ValueError(f"{type(model).__name__} keeps its embedding in a place of its own")
    embed = raw_embed = body[BODIES[name]]
    some = mx.arange(8)[None]
    # Some models scale or norm embeddings before the first layer, but none that can be a pipeline, which has
    # its first layer on another machine.
    if not is_pipeline(model) and not mx.array_equal(entering := _enter(body, some), embed(some)).item():
        assert entering.shape == (1, 8, embed(some).shape[-1])
        embed = partial(_enter, body)

    def logits(states: mx.array) -> mx.array:
        # The model itself applies its output head, as some scale or cap what it returns.
        dict.__setitem__(owner, name, _StandIn(body, lambda *_, **__: states))
        try:
            found: mx.array = owner(mx.zeros(states.shape[:-1], mx.int32))
        finally:
            dict.__setitem__(owner, name, body)
        return found

    return TargetEnds(embed, logits, raw_embed, owner.get("lm_head", raw_embed.as_linear))


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
    return owner is not None and getattr(owner[name_of_body(owner)], "pipeline_size", 1) > 1


BODIES = {"model": "embed_tokens", "backbone": "embeddings"}
"""mlx-lm's names of a model's body, and of the embedding in it."""


def name_of_body(model: Any) -> str:
    """Return the name of a model's body in it; empty if it has none."""
    return next((name for name in BODIES if name in model), "")


@singledispatch
def owner_of_body(model: Any) -> Any:
    """Return the submodel with the body and output head; None if there is none."""
    while not name_of_body(model) and "language_model" in model:
        model = model["language_model"]
    return model if name_of_body(model) else None


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
            self._modules = [owner[name_of_body(owner)]]

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
