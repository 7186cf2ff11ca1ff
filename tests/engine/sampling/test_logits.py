"""The filters keep the tokens that a brute force and a full sort keep, alike alone and in a batch."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reprise.engine.interface.request import Sampling
from reprise.engine.sampling import logits as logits_module
from reprise.engine.sampling.logits import keep_likely

MARGIN = 1e-5
"""Where a share comes this close to a limit, float32 and float64 may disagree and either is right."""


def brute_force(logits: np.ndarray, s: Sampling) -> tuple[np.ndarray, bool]:
    """Return the mask of kept tokens of one row, and whether it is certain in spite of rounding."""
    ordered = np.sort(logits.astype(np.float64))[::-1][: s.top_k or None]
    weights = np.exp(ordered - ordered[0])
    above = (np.cumsum(weights) - weights) / weights.sum()
    kept = ((above < s.top_p) | (s.top_p >= 1)) & (weights >= s.min_p)
    kept[0] = True
    closeness = np.abs(weights - s.min_p)[1:] / max(s.min_p, 1e-30) if s.min_p > 0 else np.ones(1)
    if s.top_p < 1:
        closeness = np.concatenate([closeness, np.abs(above - s.top_p)[1:]])
    return logits >= ordered[kept][-1], bool(np.all(closeness > MARGIN))


def sort_and_keep(logits: mx.array, settings: list[Sampling]) -> mx.array:
    """Do what keep_likely() does, with a sort of the whole vocabulary and float32 sums."""
    size = logits.shape[-1]
    top_k, top_p, min_p = (
        mx.array(column)[:, None]
        for column in zip(*[(s.top_k or size, s.top_p, s.min_p) for s in settings], strict=True)
    )
    ordered = -mx.sort(-logits, axis=-1)
    rank = mx.arange(size)[None]
    ordered = mx.where(rank < top_k, ordered, -mx.inf)
    probabilities = mx.softmax(ordered, axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    within = (rank < top_k) & ((top_p >= 1) | (before < top_p))
    kept = (rank == 0) | (within & (probabilities >= min_p * probabilities[:, :1]))
    lowest = mx.min(mx.where(kept, ordered, mx.inf), axis=-1, keepdims=True)
    return mx.where(logits >= lowest, logits, -mx.inf)


def make_logits(shape: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return (size,) float32 logits of a shape."""
    match shape:
        case "random":
            logits = rng.normal(0, 3, size)
        case "tied":
            logits = rng.integers(-12, 3, size) / 4
        case "masked":
            logits = np.where(rng.random(size) < 0.9, -np.inf, rng.normal(0, 3, size))
            logits[rng.integers(size)] = 1.0
        case "one-hot":
            logits = np.where(np.arange(size) == rng.integers(size), 0.0, -np.inf)
        case "flat":
            logits = np.full(size, -3.5)
        case "nearly flat":
            logits = rng.normal(0, 1e-3, size)
        case "neighbors":
            # Adjacent floats, which have the same weight.
            logits = (1 + rng.integers(0, 4, size) * np.spacing(np.float32(1))).astype(np.float32)
        case "huge range":
            logits = rng.normal(0, 1, size) * 10.0 ** rng.integers(-6, 30, size)
    return logits.astype(np.float32)


SHAPES = ["random", "tied", "masked", "one-hot", "flat", "nearly flat", "neighbors", "huge range"]

samplings = st.builds(
    Sampling,
    seed=st.just(0),
    top_k=st.just(0) | st.integers(1, 60) | st.integers(1, 20_000),
    top_p=st.just(1.0) | st.floats(0, 1, width=32),
    min_p=st.just(0.0) | st.floats(0, 1, width=32),
)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=40, deadline=None)
@given(samplings, st.integers(2, 70) | st.sampled_from([4096, 8200, 18_943]), st.integers(0, 999))
def test_filters_equal_the_brute_force_and_the_sort(
    shape: str, sampling: Sampling, size: int, seed: int
) -> None:
    logits = make_logits(shape, size, np.random.default_rng(seed))
    expected, is_certain = brute_force(logits, sampling)
    assume(is_certain)
    result = np.array(keep_likely(mx.array(logits)[None], [sampling]))[0]
    assert np.array_equal(result, np.where(expected, logits, -np.inf))
    # A float32 sum over thousands of tokens is less exact than the brute force.
    if size <= 70:
        assert np.array_equal(result, np.array(sort_and_keep(mx.array(logits)[None], [sampling]))[0])


@pytest.mark.parametrize("max_sorted", [2, 3, 16])
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SHAPES), samplings, st.integers(2, 70), st.integers(0, 999))
def test_halving_finds_what_sorting_finds(
    max_sorted: int, shape: str, sampling: Sampling, size: int, seed: int
) -> None:
    logits = mx.array(make_logits(shape, size, np.random.default_rng(seed)))[None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logits_module, "MAX_SORTED", size)
        expected = keep_likely(logits, [sampling])
        patch.setattr(logits_module, "MAX_SORTED", max_sorted)
        assert mx.array_equal(keep_likely(logits, [sampling]), expected).item()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SHAPES), samplings), min_size=2, max_size=9), st.integers(0, 999))
def test_a_row_is_filtered_alike_alone_and_in_a_batch(rows: list[tuple[str, Sampling]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = mx.array(np.stack([make_logits(shape, 9001, rng) for shape, _ in rows]))
    together = keep_likely(logits, [sampling for _, sampling in rows])
    for row, (_, sampling) in enumerate(rows):
        assert mx.array_equal(together[row], keep_likely(logits[row : row + 1], [sampling])[0]).item()


def test_a_row_without_filters_is_unchanged_by_other_rows_filters() -> None:
    logits = mx.random.normal((2, 50_000), key=mx.random.key(2))
    kept = keep_likely(logits, [Sampling(seed=0), Sampling(seed=0, top_k=5, top_p=0.5, min_p=0.5)])
    assert mx.array_equal(kept[0], logits[0]).item()


@pytest.mark.parametrize("sampling", [
    Sampling(seed=0, top_k=2), Sampling(seed=0, top_p=0.5), Sampling(seed=0, min_p=0.5),
    Sampling(seed=0, top_p=0.0), Sampling(seed=0, min_p=1.0),
])  # fmt: skip
def test_infinite_logits_leave_the_likeliest(sampling: Sampling) -> None:
    nothing = mx.full((1, 9000), -mx.inf)
    assert mx.array_equal(keep_likely(nothing, [sampling]), nothing).item()
    certain = mx.where(mx.arange(9000) == 77, mx.inf, mx.zeros((1, 9000)))
    assert mx.argmax(keep_likely(certain, [sampling]), axis=-1).item() == 77


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_tokens_drawn_are_those_of_a_full_sort(temperature: float) -> None:
    rng = np.random.default_rng(int(temperature * 10))
    kinds = [
        Sampling(seed=0, top_p=0.9), Sampling(seed=0, top_k=40), Sampling(seed=0, min_p=0.05),
        Sampling(seed=0, top_k=20, top_p=0.95), Sampling(seed=0, top_k=5000, top_p=0.8, min_p=0.001),
    ]  # fmt: skip
    for position in range(20):
        logits = mx.array(rng.normal(0, 3, (5, 32_000)).astype(np.float32)) / temperature
        noise = mx.random.gumbel(logits.shape, key=mx.random.key(position))
        drawn = mx.argmax(keep_likely(logits, kinds) + noise, axis=-1)
        assert drawn.tolist() == mx.argmax(sort_and_keep(logits, kinds) + noise, axis=-1).tolist()
