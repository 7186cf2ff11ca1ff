"""Sampling equals a brute force in numpy, and its noise is repeatable."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.interface.request import Sampling
from reprise.engine.sampling import logits as logits_module
from reprise.engine.sampling import sampler as sampler_module
from reprise.engine.sampling.logits import Likelihood, Penalties, measure
from reprise.engine.sampling.sampler import Draw, RowSampling, Sampler, noise_key
from tests.engine.driven import Driven, loaded_once
from tests.engine.support import prompt_of, request


@pytest.mark.parametrize("drafted", [[], [3, 3, 19]])
@pytest.mark.parametrize("repetition", [1.0, 1.7, 0.6])
@pytest.mark.parametrize(("presence", "frequency"), [(0.0, 0.0), (0.4, 0.0), (0.0, -0.3), (0.4, 0.3)])
def test_penalties_equal_the_brute_force(
    presence: float, frequency: float, repetition: float, drafted: list[int]
) -> None:
    rng = np.random.default_rng(3)
    prompt, answer = rng.integers(0, 20, 12).tolist(), rng.integers(0, 20, 9).tolist()
    sampling = Sampling(
        seed=0, presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition
    )
    penalties = Penalties(sampling, prompt, answer[:-1], 20)
    penalties.observe(mx.array(answer[-1:]))
    answer += drafted
    logits = rng.normal(size=20).astype(np.float32)
    expected = logits.copy()
    for token in range(20):
        if token in prompt or token in answer:
            expected[token] *= 1 / repetition if logits[token] > 0 else repetition
        expected[token] -= frequency * answer.count(token) + presence * (token in answer)
    np.testing.assert_allclose(penalties.apply(mx.array(logits), drafted), expected, rtol=1e-6, atol=1e-7)


def test_batched_noise_equals_each_row_alone() -> None:
    logits = mx.random.normal((6, 500), key=mx.random.key(1))
    rows = [Sampling(seed=i % 3, temperature=0.5 + i / 4, top_k=i * 7, top_p=0.9) for i in range(5)]
    rows.append(Sampling(seed=9, temperature=0.0))
    positions = [4, 4, 4, 90, 91, 7]
    together = Sampler([RowSampling(row, 500) for row in rows], 500).sample(logits, positions).tolist()
    alone = [
        Sampler([RowSampling(row, 500)], 500).sample(logits[i : i + 1], positions[i : i + 1]).item()
        for i, row in enumerate(rows)
    ]
    assert together == alone


def test_greedy_free_and_filtered_rows_share_a_batch() -> None:
    rng = np.random.default_rng(4)
    kinds = [
        Sampling(seed=1, temperature=0.0, top_k=3),
        Sampling(seed=2, temperature=0.8),
        Sampling(seed=3, top_p=0.7),
        Sampling(seed=4, temperature=1.3, top_k=9, min_p=0.01),
        Sampling(seed=5, min_p=0.2, presence_penalty=0.7, logit_bias=((3, 2.0), (8, -50.0))),
        Sampling(seed=6, temperature=0.0, frequency_penalty=0.4),
    ]
    rows = [RowSampling(s, 5000, [1, 2], [3, 3]) for s in kinds]
    sampler = Sampler(rows, 5000)
    # As in a verification step: several positions of each row, in any order.
    draws = [
        Draw(int(row), (7,) * int(at), rng.integers(0, 2, 5000) > 0 if at == 1 else None)
        for row, at in zip(rng.integers(0, 6, 40), rng.integers(0, 3, 40), strict=True)
    ]
    positions = [60 + len(draw.drafted) for draw in draws]
    logits = mx.array(rng.normal(0, 3, (40, 5000)).astype(np.float32))
    together = sampler.sample(logits, positions, draws).tolist()
    for at, draw in enumerate(draws):
        alone = Sampler([rows[draw.row]], 5000)
        one = dataclasses.replace(draw, row=0)
        assert together[at] == alone.sample(logits[at : at + 1], positions[at : at + 1], [one]).item()
    assert len(set(together)) > 20


@pytest.mark.parametrize("num_draws", [1, 2, 5, 39])
def test_the_size_of_a_piece_changes_no_token(monkeypatch: pytest.MonkeyPatch, num_draws: int) -> None:
    rng = np.random.default_rng(5)
    kinds = [
        Sampling(seed=1, temperature=0.0),
        Sampling(seed=2, temperature=0.8),
        Sampling(seed=3, top_p=0.7),
        Sampling(seed=4, temperature=1.3, top_k=9, min_p=0.01, repetition_penalty=1.3),
    ]
    sampler = Sampler([RowSampling(s, 5000, [1, 2], [3, 3]) for s in kinds], 5000)
    draws = [
        Draw(row, (7,) * at, rng.integers(0, 2, 5000) > 0 if at == 4 else None)
        for row in range(4)
        for at in range(10)
    ]
    positions = [60 + len(draw.drafted) for draw in draws]
    places = rng.permutation(50)[:40].tolist()
    logits = mx.array(rng.normal(0, 3, (50, 5000)).astype(np.float32))
    wanted = [3 if draw.row % 2 else None for draw in draws]

    def run() -> tuple[list[int], list[Likelihood | None]]:
        tokens = sampler.sample(logits, positions, draws, places)
        measured = measure(logits, tokens, wanted, places)
        assert measured is not None
        return tokens.tolist(), measured.fetch()

    whole = run()
    for module in (sampler_module, logits_module):
        monkeypatch.setattr(module, "draws_per_portion", lambda *_: num_draws)
    assert run() == whole


@pytest.mark.parametrize(
    ("sampling", "is_masked", "top_logprobs"),
    [
        (Sampling(seed=1, temperature=0.0), False, None),
        (Sampling(seed=1, temperature=0.0), True, 20),
        (Sampling(seed=1), False, None),
        (Sampling(seed=1, top_p=0.9), False, None),
        (Sampling(seed=1, top_k=40, min_p=0.02), False, 0),
        (Sampling(seed=1, top_k=30_000, top_p=0.9, frequency_penalty=0.5, logit_bias=((5, 1.0),)), True, 5),
    ],
)
def test_sampling_takes_at_most_the_memory_that_is_counted(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling, is_masked: bool, top_logprobs: int | None
) -> None:
    vocab_size, num_draws = 60_000, 24
    monkeypatch.setattr(logits_module, "PORTION_BYTES", 8 * 2**20)
    row = RowSampling(sampling, vocab_size, [1], [2])
    needs = logits_module.Needs(
        row.penalties is not None, sampling.has_bias, is_masked, sampling.temperature > 0, row.is_filtered
    )
    sampler = Sampler([row], vocab_size)
    logits = mx.random.normal((num_draws, vocab_size), key=mx.random.key(3)).astype(mx.bfloat16)
    held = [row.bias, *([row.penalties.counts, row.penalties.divisors] if row.penalties else [])]
    mx.eval(logits, *(array for array in held if array is not None))
    mask = np.ones(vocab_size, np.bool_) if is_masked else None
    before = mx.get_active_memory()
    # How far MLX runs ahead is a matter of timing; this makes it wait.
    usual = mx.set_memory_limit(0)
    mx.reset_peak_memory()
    tokens = sampler.sample(logits, list(range(num_draws)), [Draw(0, (), mask)] * num_draws)
    measured = measure(logits, tokens, [top_logprobs] * num_draws)
    mx.eval(tokens, *(measured.arrays if measured else ()))
    mx.set_memory_limit(usual)
    num_arrays = max(needs.num_arrays, logits_module.LIKELIHOOD_ARRAYS if measured else 0.0)
    counted = logits_module.sampling_bytes(num_draws, num_arrays, vocab_size)
    assert counted <= 8 * 2**20
    # The next portion's first arrays may exist already; estimates have room for half a portion more.
    assert mx.get_peak_memory() - before <= counted + counted // 2


def test_samples_are_distributed_as_the_softmax() -> None:
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
    sampler = Sampler([RowSampling(Sampling(seed=11), 4)], 4)
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
        assert Sampler([RowSampling(sampling, 3)], 3).sample(logits, [0]).item() == expected


def test_a_row_s_bias_is_converted_once_however_often_others_join_or_leave() -> None:
    driven = Driven(loaded_once("llama"), max_rows=4)
    bias = tuple((token, token / 4096 - 100 * (token % 2)) for token in range(4096))
    driven.ask(request(prompt_of(9), 40, name="biased", logit_bias=bias, frequency_penalty=0.5))
    batch = driven.worker.batch
    driven.step_until(lambda: len(batch.members) == 1)
    (biased,) = batch.members
    dense, counts = batch.sampler.bias[0], batch.sampler.penalties[0]
    assert dense is not None
    assert dense.tolist() == [number for _, number in bias]
    for at in range(3):
        other = driven.ask(request(prompt_of(5, at), 3, name=str(at)))
        driven.step_until(lambda: len(batch.members) == 2)
        row = batch.members.index(biased)
        assert (batch.sampler.bias[row] is dense, batch.sampler.penalties[row] is counts) == (True, True)
        driven.step_until(lambda: len(batch.members) == 1)
        assert (batch.sampler.bias[0] is dense, batch.sampler.penalties[0] is counts) == (True, True)
        other.finished()


@pytest.mark.parametrize("top_k", [3, 4, 10**9])
def test_a_top_k_beyond_the_vocabulary_is_no_limit(top_k: int) -> None:
    logits = mx.array([[1.0, 2.0, 3.0]])
    limited = Sampler([RowSampling(Sampling(seed=5, top_k=top_k), 3)], 3)
    plain = Sampler([RowSampling(Sampling(seed=5), 3)], 3)
    for position in range(50):
        assert limited.sample(logits, [position]).item() == plain.sample(logits, [position]).item()


def test_an_end_token_that_the_model_lacks_need_not_be_forbidden() -> None:
    asked = dataclasses.replace(request(prompt_of(9), 12), stop_tokens=(99_999,))
    least = dataclasses.replace(asked, sampling=dataclasses.replace(asked.sampling, min_tokens=5))
    driven = Driven(loaded_once("llama"))
    ends = []
    for number, one in enumerate((asked, least)):
        answer = driven.ask(dataclasses.replace(one, id=str(number)))
        driven.finish()
        ends.append(answer.finished().tokens)
    assert ends[0] == ends[1]
