"""Take hidden states out of the target's forward passes.

While a graph is built, the tapped modules have a class that also keeps their outputs; after that they have
their own again. So mlx-lm's models run unchanged, and nothing waits: states are lazy arrays.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mlx.core as mx

from reprise.engine.interface.errors import ModelError
from reprise.engine.speculative.heads.head import is_pipeline, owner_of_body

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
        if len(passes) == 1:
            # Not a view, which would keep the states of all rows.
            width, flat = passes[0].shape[1], passes[0].flatten(0, 1)
            return [
                mx.take(flat, mx.arange(row * width, row * width + num), axis=0) if num else None
                for row, num in enumerate(wanted)
            ]
        return [
            mx.take(states[0], mx.arange(num), axis=0) if num else None
            for states, num in zip(passes, wanted, strict=True)
        ]


class Taps:
    """The modules of a target whose outputs a head reads.

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
        """Collect the states of the forward passes whose graphs are built in the block."""
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
    """Return a class of modules of this kind that note what they return."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        returned = kind.__call__(self, *args, **kwargs)
        # Some layers return more than their state, behind it.
        self.__dict__[_OUTPUTS].append(returned[0] if isinstance(returned, tuple) else returned)
        return returned

    return type(kind.__name__, (kind,), {"__call__": call})
