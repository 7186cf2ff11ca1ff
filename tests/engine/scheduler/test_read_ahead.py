"""Prompts that are read ahead change no token, take no memory from others, and end for any request."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reprise.engine.batch import sequence
from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.prefix_cache import disk
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.scheduler import read_ahead
from reprise.engine.scheduler.read_ahead import MAX_REMEMBERED, MAX_WAITING, MIN_TOKENS
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.support import NAMES, make_loaded, prompt_of, request

HISTORY = prompt_of(90)


def driven(name: str, **settings: Any) -> Driven:
    return Driven(loaded_once(name), prefill_chunk_tokens=16, **settings)


def expect(engine: Driven, *prompts: list[int]) -> None:
    asked = [request(prompt, 1, name="expected") for prompt in prompts]
    make = [Sequence.of(one, lambda _: None, engine.loaded.tokenizer, engine.grammars) for one in asked]
    engine.worker.read_ahead.expect(make)


def read_all(engine: Driven) -> int:
    """Read everything that is expected; return the number of chunks."""
    num_chunks = 1
    while engine.worker.read_next():
        num_chunks += 1
    engine.worker.stop_reading()
    return num_chunks


def answer(engine: Driven, asked: GenerationRequest) -> Finished:
    """Ask; check the tokens, and return the end."""
    told = engine.ask(asked)
    engine.finish()
    end = told.finished()
    assert list(end.tokens) == expected_tokens(engine.loaded.info.name, asked)
    return end


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_ahead_is_used_and_changes_no_token(name: str) -> None:
    engine = driven(name)
    answer(engine, request(HISTORY[:40]))
    # As templates render it that leave thoughts out: it parts from what was answered.
    certain = HISTORY[:30] + prompt_of(60, 3)
    expect(engine, certain)
    read_all(engine)
    counts = engine.worker.stats.counts()
    assert counts.num_read_ahead >= 59
    usage = answer(engine, request(certain + prompt_of(9, 4))).usage
    assert usage.num_cached_tokens == len(certain) - 1
    assert usage.num_read_ahead_tokens == counts.num_read_ahead
    counts = engine.worker.stats.counts()
    assert counts.num_read_ahead_used == counts.num_read_ahead
    assert not counts.num_read_ahead_wasted
    assert counts.read_ahead_s > 0


@pytest.mark.parametrize(
    ("name", "num_chunks"),
    [*((name, 2) for name in NAMES), ("llama", 0), ("gemma3_text", 1), ("qwen3_next", 3)],
)
def test_a_request_ends_it_at_the_next_chunk_and_what_was_computed_stays(name: str, num_chunks: int) -> None:
    engine = driven(name)
    expect(engine, HISTORY)
    for _ in range(num_chunks):
        assert engine.worker.read_next()
    engine.worker.stop_reading()
    num_read = engine.worker.stats.num_read_ahead
    assert (num_read > 0) == (num_chunks > 0)
    assert num_read < len(HISTORY) - 1
    # Another conversation comes first, and the same one goes on before it was read to its end.
    assert not answer(engine, request(prompt_of(20, 9), name="other")).usage.num_read_ahead_tokens
    assert answer(engine, request([*HISTORY, 7, 8])).usage.num_read_ahead_tokens == num_read


def test_little_is_left_to_copy_when_a_request_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "KEPT_TOKENS", 32)
    engine = driven("llama")
    expect(engine, HISTORY)
    for _ in range(5):
        engine.worker.read_next()
    cache, reading = engine.worker.queue.prefixes.cache, engine.worker.read_ahead._reading
    assert cache
    assert reading
    num_read = reading.prefill.num_computed
    assert num_read - 32 < cache.count_held(TextKey.of(HISTORY))
    engine.worker.stop_reading()
    assert answer(engine, request([*HISTORY, 7, 8])).usage.num_cached_tokens == num_read


@pytest.mark.parametrize("name", NAMES)
def test_what_a_request_has_computed_meanwhile_is_not_read_again(name: str) -> None:
    engine = driven(name)
    expect(engine, HISTORY)
    engine.worker.read_next()
    engine.worker.stop_reading()
    num_read = engine.worker.stats.num_read_ahead
    answer(engine, request([*HISTORY, 7, 8]))
    read_all(engine)
    assert engine.worker.stats.num_read_ahead == num_read


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_a_restart_finds_what_was_read_ahead_and_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MIN_SAVED_TOKENS", "OPENING_TOKENS"):
        monkeypatch.setattr(disk, limit, 1)
    certain = HISTORY + prompt_of(200, 3)
    for start in (4, 5):
        engine = driven(name, prefix_cache_dir=str(tmp_path))
        if start == 4:
            expect(engine, certain)
            read_all(engine)
        usage = answer(engine, request(certain + prompt_of(9, start))).usage
        assert usage.num_cached_tokens >= len(certain) - 1
        engine.worker.queue.prefixes.close()


def test_what_is_left_is_read_when_the_request_has_ended() -> None:
    engine = driven("llama")
    expect(engine, HISTORY)
    engine.worker.read_next()
    engine.worker.stop_reading()
    answer(engine, request(prompt_of(20, 9), name="other"))
    read_all(engine)
    assert engine.worker.stats.num_read_ahead == len(HISTORY) - 1
    usage = answer(engine, request([*HISTORY, 7, 8])).usage
    assert usage.num_read_ahead_tokens == usage.num_cached_tokens == len(HISTORY) - 1


def test_a_prompt_that_lacks_little_is_not_read() -> None:
    engine = driven("llama")
    answer(engine, request(HISTORY, 4))
    expect(engine, HISTORY + prompt_of(MIN_TOKENS // 2, 5))
    read_all(engine)
    assert not engine.worker.stats.num_read_ahead


def test_the_newest_expectations_come_first_and_few_wait() -> None:
    engine = driven("llama")
    prompts = [prompt_of(50, start) for start in range(MAX_WAITING + 2)]
    for prompt in prompts:
        expect(engine, prompt)
    engine.worker.read_next()
    engine.worker.stop_reading()
    num_read = answer(engine, request(prompts[-1] + [5])).usage.num_read_ahead_tokens
    assert num_read
    read_all(engine)
    # The request has computed the rest of its own.
    assert engine.worker.stats.num_read_ahead == num_read + (MAX_WAITING - 1) * 49
    assert not answer(engine, request(prompts[0] + [5])).usage.num_read_ahead_tokens


def test_a_wrong_expectation_is_counted_as_wasted() -> None:
    engine = driven("llama")
    expect(engine, HISTORY)
    read_all(engine)
    usage = answer(engine, request(HISTORY[:50] + prompt_of(30, 8))).usage
    assert usage.num_read_ahead_tokens == 50
    counts = engine.worker.stats.counts()
    # The rest may still be used, by the turn after this one.
    assert (counts.num_read_ahead_used, counts.num_read_ahead_wasted) == (50, 0)
    for start in range(MAX_REMEMBERED + 1):
        expect(engine, prompt_of(40, 20 + start))
        read_all(engine)
    assert engine.worker.stats.num_read_ahead_wasted == 39 + 39


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_what_was_read_twice_counts_once(name: str) -> None:
    engine = driven(name)
    # One with state cannot start where these two part.
    other = HISTORY[:80] + prompt_of(30, 5)
    for prompt in (HISTORY, HISTORY, other):
        expect(engine, prompt)
        read_all(engine)
        if prompt is HISTORY:
            engine.worker.queue.memory_budget.give_up(2**40)
    usage = answer(engine, request([*other, 7, 8])).usage
    assert usage.num_read_ahead_tokens == usage.num_cached_tokens == len(other) - 1
    counts = engine.worker.stats.counts()
    # The ends of the first two may still be used.
    left = counts.num_read_ahead - counts.num_read_ahead_used - counts.num_read_ahead_wasted
    assert left == 2 * (len(HISTORY) - 1 - 80)


def test_a_failure_ends_it_and_nothing_else() -> None:
    failing: list[bool] = []

    class Failing:
        def __init__(self, model: Any) -> None:
            self._model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self._model, name)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if failing:
                raise RuntimeError("out of memory")
            return self._model(*args, **kwargs)

    loaded = make_loaded("llama", Failing)
    engine = Driven(loaded, prefill_chunk_tokens=16)
    expect(engine, HISTORY)
    assert engine.worker.read_next()
    failing.append(True)
    read_all(engine)
    failing.clear()
    # Other models may have its memory.
    assert engine.worker.queue.memory_budget.used_bytes == 0
    told = engine.ask(asked := request([*HISTORY, 7, 8]))
    engine.finish()
    assert list(told.finished().tokens) == expected_tokens("llama", asked)


def test_nothing_is_read_without_a_prefix_cache_or_room() -> None:
    for settings in ({"prefix_cache_bytes": 0}, {}):
        engine = driven("llama", **settings)
        answer(engine, request(HISTORY, 4))
        budget = engine.worker.queue.memory_budget
        held = sum(cache.num_bytes for cache in budget.prefixes)
        # Room for the prompt alone, but not beside what is cached.
        budget.room_bytes = budget.bytes_alone(300) + held // 2
        expect(engine, prompt_of(299, 6))
        read_all(engine)
        assert not engine.worker.stats.num_read_ahead
        assert sum(cache.num_bytes for cache in budget.prefixes) == held


def test_what_the_prefix_cache_could_not_hold_is_not_read() -> None:
    engine = driven("llama")
    expect(engine, HISTORY)
    read_all(engine)
    assert engine.worker.queue.prefixes.cache
    small = driven("llama", prefix_cache_bytes=engine.worker.queue.prefixes.cache.num_bytes * 2 // 3)
    for _ in range(2):
        expect(small, HISTORY)
        assert read_all(small) == 1


def test_its_progress_is_not_logged_as_that_of_a_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence, "LOG_PROMPT_EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "reprise.engine")
    engine = driven("llama")
    expect(engine, HISTORY)
    read_all(engine)
    assert not [line for line in caplog.records if "reading the prompt" in line.getMessage()]


def test_what_cannot_be_kept_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = driven("llama")
    expect(engine, HISTORY)
    engine.worker.read_next()
    monkeypatch.setattr(engine.worker.queue.prefixes, "keep_prefill", lambda _: 1 // 0)
    engine.worker.stop_reading()
    assert engine.worker.queue.memory_budget.used_bytes == 0
    assert not engine.worker.read_next()


def test_its_memory_is_free_afterwards() -> None:
    engine = driven("llama")
    budget = engine.worker.queue.memory_budget
    answer(engine, request(HISTORY[:20], 4))
    idle_bytes = budget.used_bytes
    expect(engine, HISTORY)
    engine.worker.read_next()
    assert budget.used_bytes > idle_bytes
    read_all(engine)
    assert budget.used_bytes == idle_bytes


def test_a_model_that_is_unloaded_meanwhile_forgets_it() -> None:
    engine = driven("llama")
    expect(engine, HISTORY)
    engine.worker.read_next()
    assert not engine.worker.has_work
    assert engine.worker.suspend() == []
    assert replace(engine.worker.stats.counts(), read_ahead_s=0.0).num_read_ahead == 0
