"""Combinations of parameters: a spread of them on every run, the others with `-m slow`."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest

FAMILIES = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "gemma2", "gemma3", "gemma3n", "gemma4",
    "gpt_oss", "phi3", "ministral3", "mistral3", "mixtral", "deepseek_v3", "glm4_moe", "lfm2",
    "granitemoehybrid", "nemotron_h", "falcon_h1",
)  # fmt: skip
"""The most used architectures; mlx-lm loads Mistral's models as llama, ministral3 or mistral3."""


def every_kind_of_cache(names: Iterable[str], turn: int = 0, of: int = 1) -> list[Any]:
    """Return the architectures; those whose turn it is not are marked slow, but for the first.

    of: how many tests take turns, so that together they try every one.
    """
    return [
        pytest.param(name, marks=[pytest.mark.slow] if at and at % of != turn else [])
        for at, name in enumerate(names)
    ]


def spread(*axes: Iterable[Any] | Mapping[str, Any]) -> list[Any]:
    """Return all combinations of the axes' values; every other one (of three axes two of three) is slow.

    Those that stay are the ones whose places on the axes add up to a multiple of two, as on a chessboard, or
    of three. Every value of an axis is still among them.
    axes: values, or values by the names that they have in the test's id.
    """
    step = min(len(axes), 3)
    named = [axis.items() if isinstance(axis, Mapping) else [(str(v), v) for v in axis] for axis in axes]
    return [
        pytest.param(
            *(value for _, (_, value) in places),
            id="-".join(name for _, (name, _) in places),
            marks=[pytest.mark.slow] if sum(at for at, _ in places) % step else [],
        )
        for places in product(*(list(enumerate(axis)) for axis in named))
    ]
