"""The largest logits are found as by a stable sort, ties included."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.engine.sampling.logits import find_largest


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.data())
def test_the_largest_are_those_of_a_stable_sort(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    num_values = data.draw(st.sampled_from([1, 3, 50, 10_000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    logits = (rng.integers(-num_values, num_values, (3, size)) / 7).astype(np.float32)
    logits[0, rng.integers(0, size, size // 2)] = -np.inf
    found = np.array(find_largest(mx.array(logits), count))
    expected = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    assert np.array_equal(np.sort(found, axis=-1), np.sort(expected, axis=-1))


@pytest.mark.parametrize("values", [[0.0, -0.0, -0.0, 0.0], [-1e-45, 1e-45, -3e38, 3e38], [-np.inf] * 4])
def test_signs_zeros_and_extremes_keep_the_order_of_values(values: list[float]) -> None:
    logits = np.array([values], np.float32)
    for count in range(1, 5):
        found = sorted(find_largest(mx.array(logits), count)[0].tolist())  # type: ignore[arg-type]
        assert found == sorted(np.argsort(-logits[0], kind="stable")[:count].tolist())
