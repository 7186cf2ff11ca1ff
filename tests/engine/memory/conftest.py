"""What a model takes is measured in each test, as some replace what is measured, or how."""

from collections.abc import Iterator

import mlx.core as mx
import pytest

from tests.engine.support import FINDINGS

ROOMY = 2**40


@pytest.fixture(autouse=True)
def _nothing_is_known_of_a_model() -> None:
    FINDINGS.clear()


@pytest.fixture(autouse=True)
def limit_of_mlx() -> Iterator[None]:
    """MLX's own limit is the process's, and other tests have none."""
    before = mx.set_memory_limit(ROOMY)
    yield
    mx.set_memory_limit(before)
