"""Run forward passes of one rank's part of a model, with what the ranks exchange evaluated in one order.

Every rank builds its own graph, and MLX evaluates a graph in an order of its own. If two ranks evaluate what
they exchange in different orders, both wait for ever. So all that a forward pass sends, receives or sums is
dispatched here, as soon as its graph is built.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from reprise.engine.distributed.parts.part_files import PartFiles

EXCHANGES = ("all_gather", "all_sum", "recv", "recv_like", "send")

Agree = Callable[[Exception | None], None]
"""Says whether this rank can run what it built; returns if all can, else raises RuntimeError."""


def no_agreement(fault: Exception | None) -> None:
    """Raise this rank's fault, if it has one, without asking the other ranks."""
    if fault is not None:
        raise fault


class Shard:
    """One rank's part of a model: called as the model is, on every rank with the same commands.

    model: this rank's part, a module of mlx-lm.
    agree: called between building and evaluating a forward pass, with the exception of building it, if any.
    place: how the model is split, in words.
    files: the prefix files of a rank other than rank 0; None if it has none.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.agree: Agree = no_agreement
        self.place = ""
        self.files: PartFiles | None = None

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        """Run one forward pass; return its logits, not yet evaluated."""
        fault: Exception | None = None
        with _exchanges() as made:
            try:
                logits: mx.array = self.model(tokens, cache=cache)
            # Whatever it is, the other ranks must know of it before they wait for this one.
            except Exception as raised:
                fault = raised
        self.agree(fault)
        mx.async_eval(made)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def share_tokens(tokens: mx.array) -> mx.array:
    """Return rank 0's tokens on every rank; the other ranks pass zeros of the same shape.

    Tokens that were just sampled are on the device of rank 0 only, and this does not wait for them.
    """
    shared = mx.distributed.all_sum(tokens.astype(mx.int32))
    # Rank 0 of a pipeline never uses it, and the others would wait for ever.
    mx.async_eval(shared)
    return shared


def _independent(inputs: Any, dependencies: Any) -> Any:  # noqa: ARG001 - MLX's own arguments
    return inputs


@contextmanager
def _exchanges() -> Iterator[list[mx.array]]:
    """Collect all that the block exchanges with other ranks, in order."""
    made: list[mx.array] = []
    originals = {name: getattr(mx.distributed, name) for name in EXCHANGES}
    depends = mx.depends

    def collecting(exchange: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def collect(*given: Any, **options: Any) -> mx.array:
            made.append(exchange(*given, **options))
            return made[-1]

        return collect

    try:
        for name, exchange in originals.items():
            setattr(mx.distributed, name, collecting(exchange))
        # Pipelines make a cache wait for what was sent, so that it is sent at all. Here it is in any case,
        # and no other array is known as the state that a traced function returned.
        mx.depends = _independent
        yield made
    finally:
        for name, exchange in originals.items():
            setattr(mx.distributed, name, exchange)
        mx.depends = depends
