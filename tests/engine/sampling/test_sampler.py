"""Sampling equals a brute force in numpy, and its noise is repeatable."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Sampling
from engine.sampling.sampler import Penalties, Sampler, keep_likely, noise_key


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=30),
    st.integers(1, 40), st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip
def test_filters_equal_the_brute_force(values: list[int], top_k: int, top_p: float, min_p: float) -> None:
    logits = np.array(values, np.float32) / 8
    ordered = sorted(logits, reverse=True)[:top_k]
    weights = np.exp(np.array(ordered, np.float64) - ordered[0])
    weights /= weights.sum()
    kept, before = [ordered[0]], weights[0]
    for logit, weight in zip(ordered[1:], weights[1:], strict=True):
        # Too close to a threshold for float32 to agree with float64: either result is right.
        if abs(before - top_p) < 1e-4 or abs(weight - min_p * weights[0]) < 1e-4:
            return
        if before < top_p and weight >= min_p * weights[0]:
            kept.append(logit)
        before += weight
    column = [mx.array([[x]]) for x in (top_k, top_p, min_p)]
    result = np.array(keep_likely(mx.array(logits)[None], *column))[0]
    assert np.array_equal(np.isfinite(result), logits >= kept[-1])
    assert np.array_equal(result[np.isfinite(result)], logits[np.isfinite(result)])


def test_penalties_equal_the_brute_force() -> None:
    rng = np.random.default_rng(3)
    prompt, answer = rng.integers(0, 20, 12).tolist(), rng.integers(0, 20, 9).tolist()
    sampling = Sampling(seed=0, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.7)
    penalties = Penalties(sampling, prompt, answer[:-1], 20)
    penalties.observe(mx.array(answer[-1:]))
    logits = rng.normal(size=20).astype(np.float32)
    expected = logits.copy()
    for token in range(20):
        if token in prompt or token in answer:
            expected[token] = logits[token] / 1.7 if logits[token] > 0 else logits[token] * 1.7
        expected[token] -= 0.3 * answer.count(token) + 0.4 * (token in answer)
    np.testing.assert_allclose(np.array(penalties.apply(mx.array(logits))), expected, rtol=1e-6)


def test_batched_noise_equals_each_row_alone() -> None:
    logits = mx.random.normal((6, 500), key=mx.random.key(1))
    rows = [Sampling(seed=i % 3, temperature=0.5 + i / 4, top_k=i * 7, top_p=0.9) for i in range(5)]
    rows.append(Sampling(seed=9, temperature=0.0))
    positions = [4, 4, 4, 90, 91, 7]
    together = Sampler([(row, None) for row in rows], 500).sample(logits, positions).tolist()
    alone = [
        Sampler([(row, None)], 500).sample(logits[i : i + 1], positions[i : i + 1]).item()
        for i, row in enumerate(rows)
    ]
    assert together == alone


def test_a_row_without_filters_is_unchanged_by_other_rows_filters() -> None:
    logits = mx.random.normal((1, 50_000), key=mx.random.key(2))
    column = [mx.array([[x]]) for x in (50_000, 1.0, 0.0)]
    assert mx.array_equal(keep_likely(logits, *column), logits).item()


def test_samples_are_distributed_as_the_softmax() -> None:
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    sampler = Sampler([(Sampling(seed=11), None)], 4)
    drawn = [sampler.sample(logits, [position]).item() for position in range(4000)]
    shares = np.bincount(drawn, minlength=4) / 4000
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.03)


def test_noise_keys_differ_by_seed_and_by_position() -> None:
    keys = {noise_key(seed, position) for seed in (-1, 0, 1, 2, 2**63) for position in range(200)}
    assert len(keys) == 5 * 200


def test_a_bias_can_forbid_or_force_a_token() -> None:
    logits = mx.array([[1.0, 2.0, 3.0]])
    for bias, expected in (((2, -100.0),), 1), (((0, 100.0),), 0):
        sampling = Sampling(seed=0, temperature=0.0, logit_bias=bias)
        assert Sampler([(sampling, None)], 3).sample(logits, [0]).item() == expected


@pytest.mark.parametrize("top_k", [3, 4, 10**9])
def test_a_top_k_beyond_the_vocabulary_is_no_limit(top_k: int) -> None:
    logits = mx.array([[1.0, 2.0, 3.0]])
    limited = Sampler([(Sampling(seed=5, top_k=top_k), None)], 3)
    plain = Sampler([(Sampling(seed=5), None)], 3)
    for position in range(50):
        assert limited.sample(logits, [position]).item() == plain.sample(logits, [position]).item()
