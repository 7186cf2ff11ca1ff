"""Combinations of parameters: a spread of them on every run, the others with `-m slow`."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest


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
