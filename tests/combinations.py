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

LIKE_OTHERS = ("qwen3", "gpt_oss", "qwen3_next")
"""Architectures whose caches are of kinds that another tiny model has, too."""


def every_kind_of_cache(names: Iterable[str]) -> list[Any]:
    """Return the architectures; those whose kinds of cache another one has are marked slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n in LIKE_OTHERS else []) for n in names]


def spread(*axes: Iterable[Any] | Mapping[str, Any]) -> list[Any]:
    """Return all combinations of the axes' values; every other one is marked slow.

    Those that stay are the ones whose places on the axes add up to an even number, as on a chessboard. Where
    a third axis has two values, every pair of values from any two axes is still among them.
    axes: values, or values by the names that they have in the test's id.
    """
    named = [axis.items() if isinstance(axis, Mapping) else [(str(v), v) for v in axis] for axis in axes]
    return [
        pytest.param(
            *(value for _, (_, value) in places),
            id="-".join(name for _, (name, _) in places),
            marks=[pytest.mark.slow] if sum(at for at, _ in places) % 2 else [],
        )
        for places in product(*(list(enumerate(axis)) for axis in named))
    ]
