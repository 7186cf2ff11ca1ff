"""Trials that take long are put off until nothing is asked; until then everything works, only slower."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.engine.engine import Engine
from reprise.engine.generating import generating_engine as generating
from reprise.engine.generating.setup import try_the_rest
from reprise.engine.memory.estimate import guess, measure
from reprise.engine.model.capabilities import NOT_TRIED, Findings, PutOffError
from reprise.engine.model.loading import LoadedModel
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.memory.test_estimate import Guesser
from tests.engine.support import ask, make_loaded, make_model, oracle, prompt_of, request, wait_until

SETTINGS: dict[str, Any] = {"keeps_costs": False, "draft_type": "suffix", "max_rows": 2}


def fresh() -> LoadedModel:
    """Make a model of which nothing was found out by other tests."""
    return make_loaded("llama", lambda model: model)


def make_sources(_: Any) -> DraftSources:
    return DraftSources({"suffix": Guesser()}, scored(1.0))


@pytest.fixture
def may_try(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return an event before which nothing is tried, neither at the start nor while nothing is asked."""
    allowed = threading.Event()

    def try_later(*given: Any) -> None:
        if not allowed.is_set():
            raise PutOffError
        try_the_rest(*given)

    monkeypatch.setattr(generating, "TRIALS_AT_START_S", 0.0)
    monkeypatch.setattr(generating, "try_the_rest", try_later)
    yield allowed
    allowed.set()


def test_a_trial_is_left_at_the_first_pass_after_its_time_and_those_after_it_do_not_begin() -> None:
    now_s, fed = [0.0], []
    findings = Findings()
    findings.on_pass = fed.append
    findings.put_off_after(10.0, lambda: now_s[0])
    model = findings.watch(lambda tokens: tokens)

    def try_it(num_passes: int) -> str | None:
        for _ in range(num_passes):
            now_s[0] += 3
            model(mx.zeros((1, 5)))
        return None

    assert findings.find_fault("quick", lambda: try_it(2)) is None
    assert findings.find_fault("slow", lambda: try_it(9)) == NOT_TRIED
    assert findings.find_fault("later", lambda: try_it(9)) == NOT_TRIED
    assert (fed, findings.are_put_off) == ([5] * 4, True)
    findings.is_over, findings.may_put_off = lambda: False, False
    assert findings.find_fault("faulty", lambda: "no") == "no"
    assert findings.find_fault("faulty", lambda: None) == "no", "until the rest is found"
    assert [findings.find_fault(name, lambda: try_it(1)) for name in ("quick", "slow", "later")] == [None] * 3
    assert len(fed) == 6, "what was found stays"
    findings.put_nothing_off()
    assert findings.find_fault("faulty", lambda: None) is None
    findings.is_over = lambda: True
    with pytest.raises(PutOffError):
        findings.find_fault("another", lambda: try_it(1))


def test_answers_are_the_same_before_and_after_the_rest_was_tried(
    may_try: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="reprise.engine")
    engine = Engine(Settings(**SETTINGS), Makers(lambda _: fresh(), make_sources))
    engine.start()
    try:
        before = engine.info
        asked = [request(prompt_of(20), 12, name=name) for name in ("before", "after")]
        expected = oracle(make_loaded("llama"), asked[0])
        first = ask(engine, asked[0]).finished()
        counted = engine.counts()
        may_try.set()
        wait_until(lambda: engine.info.is_tried)
        second = ask(engine, asked[1]).finished()
        assert list(first.tokens) == list(second.tokens) == expected
        assert (first.usage.drafting.num_drafted, second.usage.drafting.num_drafted > 0) == (0, True)
        assert engine.counts().gap_sum_s > counted.gap_sum_s > 0
    finally:
        engine.stop(drain_s=0)
    assert not before.is_tried
    assert before.batching != engine.info.batching
    assert before.context_tokens == engine.info.context_tokens
    assert {record.levelname for record in caplog.records} == {"INFO"}
    said = [record.getMessage() for record in caplog.records]
    assert said.count(generating.PUT_OFF % ("llama", 0.0)) == 1
    assert not [line for line in said if NOT_TRIED in line]
    assert any(line.startswith("llama: all that it can do is tried; ") for line in said)


def test_a_pool_counts_the_memory_of_the_new_worker_and_unloads_it(may_try: threading.Event) -> None:
    pool = Engine(Settings(allow_load=True, **SETTINGS), make_sources=lambda _: make_sources)
    pool.start()
    try:
        name = pool.first_name
        assert not pool.info.is_tried
        may_try.set()
        wait_until(lambda: pool.info.is_tried)
        residency: Any = pool._loop._residency
        assert residency._memory.holders == [pool.first_engine.memory_budget]
        pool.unload(name).result()
        assert residency._memory.holders == []
    finally:
        pool.stop(drain_s=0)


def test_benchmarks_and_what_depends_on_trials_wait_for_them(may_try: threading.Event) -> None:
    for settings, makers in (
        ({}, {"waits_for_trials": True}),
        ({"exact": True, "num_draft_tokens": 1, "max_rows": 1}, {}),
    ):
        made = Makers(lambda _: fresh(), make_sources, **makers)
        engine = Engine(Settings(**SETTINGS | settings), made)
        engine.start()
        engine.stop(drain_s=0)
        assert engine.info.is_tried, (settings, makers)
    assert not may_try.is_set()


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "qwen3_next", "lfm2", "mixtral"])
def test_an_estimate_is_never_less_than_what_is_measured(name: str) -> None:
    model = make_model(name)
    measured, estimated = measure(model), guess(model, None, 4096)
    for field in ("token_bytes", "windows", "layer_bytes", "fixed_bytes"):
        assert getattr(estimated, field) == getattr(measured, field)
    for field in ("fed_bytes", "seen_bytes", "logits_bytes", "trace_bytes"):
        assert getattr(estimated, field) >= getattr(measured, field), field
