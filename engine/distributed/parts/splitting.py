"""Split a model whose weights are not read yet: by layers (pipeline) or within each layer (tensor)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mlx.core as mx

from reprise.engine.interface.errors import ModelError

Split = Literal["pipeline", "tensor"]

DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
"""Sizes in a configuration that tensor parallelism divides by the number of ranks."""


def split_model(
    model: Any, group: mx.distributed.Group, split: Split, layers: Sequence[int] | None, name: str
) -> list[int] | None:
    """Reduce a model to this rank's part; return the number of layers of each rank in a pipeline, else None.

    layers: how many each rank is to have, rank 0 first; None for an even split.
    name: the model's name, for messages.
    Raises ModelError if the model cannot be split in this way.
    """
    if split == "pipeline":
        return _split_layers(model, group, layers, name)
    if layers is not None:
        raise ModelError("--split-layers is for --split pipeline")
    if not hasattr(model, "shard"):
        other = "; --split pipeline works" if _pipelined(model) is not None else ""
        raise ModelError(f"mlx-lm cannot split {name} within its layers (--split tensor){other}")
    _check_divisible(vars(getattr(model, "args", None) or object), group.size(), name)
    try:
        model.shard(group)
    except Exception as fault:
        raise ModelError(f"{name} cannot be split over {group.size()} machines: {fault}") from fault
    return None


def _split_layers(
    model: Any, group: mx.distributed.Group, layers: Sequence[int] | None, name: str
) -> list[int]:
    inner = _pipelined(model)
    if inner is None:
        other = "; --split tensor works" if hasattr(model, "shard") else ""
        raise ModelError(f"mlx-lm cannot split {name} by layers (--split pipeline){other}")
    num_layers = len(inner.layers)
    base, extra = divmod(num_layers, group.size())
    chosen = list(layers) if layers else [base + (rank < extra) for rank in range(group.size())]
    if len(chosen) != group.size() or min(chosen) < 1 or sum(chosen) != num_layers:
        given = ",".join(map(str, chosen))
        raise ModelError(
            f"--split-layers {given}: {name} has {num_layers} layers for {group.size()} ranks; give each "
            f"of them at least one, and {num_layers} in all"
        )
    inner.pipeline(group, split=chosen)
    return chosen


def _pipelined(model: Any) -> Any:
    """Return the part of a model that can be split by layers, None if there is none."""
    inner = getattr(getattr(model, "language_model", model), "model", None)
    return inner if hasattr(inner, "pipeline") else None


def _check_divisible(config: Mapping[str, Any], size: int, name: str) -> None:
    text = config.get("text_config") or {}
    for key in DIVIDED:
        number = config.get(key) or text.get(key)
        if isinstance(number, int) and number % size:
            raise ModelError(f"{name} cannot be split over {size} machines: its {key} is {number}")
    quantization = config.get("quantization") or {}
    group_size = quantization.get("group_size")
    for key in DIVIDED[2:]:
        number = config.get(key) or text.get(key)
        if group_size and isinstance(number, int) and number // size % group_size:
            raise ModelError(
                f"{name} cannot be split over {size} machines: a part of its {key} has {number // size} "
                f"numbers, which is no multiple of the quantization's groups of {group_size}"
            )
