"""The same answer: token ids equal the plain loop's, whatever else is in the batch or the cache."""

from typing import Any

import pytest
from mlx_lm import stream_generate

from reprise.engine.kv_cache import rows
from tests.combinations import spread
from tests.engine.conftest import StartEngine
from tests.engine.support import CONFIGS, ask, make_loaded, oracle, prompt_of, request

ARCHITECTURES = list(CONFIGS)
SAMPLING: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.9, "seed": 42}}


@pytest.mark.parametrize("how", SAMPLING)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_alone_it_equals_the_plain_loop(name: str, how: str, start_engine: StartEngine) -> None:
    asked = request(prompt_of(21), **SAMPLING[how])
    engine = start_engine(name)
    assert list(ask(engine, asked).finished().tokens) == oracle(make_loaded(name), asked)


@pytest.mark.parametrize(("name", "how"), spread(ARCHITECTURES, list(SAMPLING)))
def test_in_a_batch_of_eight_it_equals_the_plain_loop(name: str, how: str, start_engine: StartEngine) -> None:
    engine = start_engine(name, max_stall_ms=0)
    asked = [
        request(prompt_of(3 + 9 * i, i), max_tokens=8 + 5 * i, name=str(i), **SAMPLING[how]) for i in range(8)
    ]
    answers = [ask(engine, one) for one in asked]
    loaded = make_loaded(name)
    for one, answer in zip(asked, answers, strict=True):
        assert list(answer.finished().tokens) == oracle(loaded, one)


def test_rows_that_join_and_leave_do_not_change_the_others(start_engine: StartEngine) -> None:
    engine = start_engine(max_rows=3, max_stall_ms=0)
    asked = [
        request(
            prompt_of(5 + (i * 37) % 60, i),
            max_tokens=1 + (i * 13) % 31,
            name=str(i),
            temperature=i % 2,
            seed=i,
        )
        for i in range(16)
    ]
    answers = [ask(engine, one) for one in asked]
    loaded = make_loaded("llama")
    for one, answer in zip(asked, answers, strict=True):
        assert list(answer.finished().tokens) == oracle(loaded, one)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "qwen3_next", "llama4", "deepseek_v3"])
def test_rows_that_outgrow_their_groups_do_not_change(
    name: str, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "FIRST_LIMIT", 16)
    engine = start_engine(name, max_rows=4, max_stall_ms=0)
    asked = [
        request(
            prompt_of(5 + (i * 37) % 90, i), max_tokens=20 + i, name=str(i), temperature=0.9 * (i % 2), seed=i
        )
        for i in range(9)
    ]
    answers = [ask(engine, one) for one in asked]
    loaded = make_loaded(name)
    for one, answer in zip(asked, answers, strict=True):
        assert list(answer.finished().tokens) == oracle(loaded, one)


@pytest.mark.parametrize("how", SAMPLING)
def test_a_warm_prefix_cache_changes_nothing_and_is_used(how: str, start_engine: StartEngine) -> None:
    engine, loaded = start_engine(), make_loaded("llama")
    first = request(prompt_of(50), **SAMPLING[how])
    cold = ask(engine, first).finished()
    again = ask(engine, first).finished()
    assert cold.usage.num_cached_tokens == 0
    assert again.usage.num_cached_tokens == 49
    assert again.tokens == cold.tokens
    follow_up = request([*first.prompt, *cold.tokens, *prompt_of(9, 5)], **SAMPLING[how])
    warm = ask(engine, follow_up).finished()
    assert warm.usage.num_cached_tokens >= 50 + len(cold.tokens) - 1
    assert list(warm.tokens) == oracle(loaded, follow_up)
    branch = request([*first.prompt[:30], *prompt_of(9, 6)], **SAMPLING[how])
    warm = ask(engine, branch).finished()
    assert warm.usage.num_cached_tokens == 30
    assert list(warm.tokens) == oracle(loaded, branch)


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_chunked_prefill_changes_nothing(chunk: int, start_engine: StartEngine) -> None:
    engine = start_engine(prefill_chunk_tokens=chunk, prefix_cache_bytes=0)
    asked = request(prompt_of(100), temperature=0.8)
    assert list(ask(engine, asked).finished().tokens) == oracle(make_loaded("llama"), asked)


def test_greedy_equals_mlx_lm() -> None:
    loaded = make_loaded("llama")
    asked = request(prompt_of(33))
    theirs = [
        step.token
        for step in stream_generate(loaded.model, loaded.tokenizer.wrapped, list(asked.prompt), max_tokens=24)
    ]
    assert oracle(loaded, asked) == theirs


def test_a_context_beyond_the_first_buffer_changes_nothing(start_engine: StartEngine) -> None:
    engine = start_engine()
    asked = [request(prompt_of(n, n), max_tokens=40, name=str(n)) for n in (250, 20, 530)]
    answers = [ask(engine, one) for one in asked]
    loaded = make_loaded("llama")
    for one, answer in zip(asked, answers, strict=True):
        assert list(answer.finished().tokens) == oracle(loaded, one)


def test_penalties_count_the_same_tokens_alone_and_in_a_batch(start_engine: StartEngine) -> None:
    engine = start_engine(prefix_cache_bytes=0)
    # The bias makes a few tokens repeat often, so that the penalties have an effect.
    bias = {"logit_bias": tuple((token, 40.0) for token in range(100, 106)), "temperature": 0.7}
    penalties = {"presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3}
    asked = [request(prompt_of(10, i), name=str(i), max_tokens=40, **bias, **penalties) for i in range(4)]
    alone = [ask(engine, one).finished().tokens for one in asked]
    together = [ask(engine, one) for one in asked]
    assert [answer.finished().tokens for answer in together] == alone
    unpenalised = ask(engine, request(prompt_of(10), max_tokens=40, **bias)).finished().tokens
    assert alone[0] != unpenalised


def test_a_token_with_a_full_frequency_penalty_gives_way(start_engine: StartEngine) -> None:
    engine = start_engine()
    bias = ((100, 100.0), (200, 99.0), (300, 98.0))
    asked = request(
        prompt_of(10), max_tokens=3, logit_bias=bias, frequency_penalty=2.0, presence_penalty=60.0
    )
    assert sorted(ask(engine, asked).finished().tokens) == [100, 200, 300]
