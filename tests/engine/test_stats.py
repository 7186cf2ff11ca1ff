"""The engine's counts are right."""

import time
from types import SimpleNamespace

from reprise.engine.interface.status import GAP_BOUNDS_S
from reprise.engine.speculative.proposers import DraftSources
from reprise.server.metrics.definitions import GROUPS
from tests.drafters.fakes import scored
from tests.engine.faults.test_faults import POISON, Poisoned
from tests.engine.support import Answer, ask, make_loaded, prompt_of, request

NUM_TOKENS, PAUSE_S = 12, 2.6


def test_every_token_after_a_sequence_s_first_has_a_gap(start_engine):
    engine = start_engine()
    started = time.perf_counter()
    answers = [ask(engine, request(prompt_of(8, i), NUM_TOKENS, name=str(i))) for i in range(3)]
    num_tokens = sum(answer.finished().usage.num_completion_tokens for answer in answers)
    counts = engine.counts()
    assert len(counts.gaps_up_to) == len(GAP_BOUNDS_S) + 1
    assert counts.gaps_up_to[-1] == num_tokens - len(answers)
    assert list(counts.gaps_up_to) == sorted(counts.gaps_up_to)
    assert 0 < counts.gap_sum_s <= len(answers) * (time.perf_counter() - started)


def test_a_pause_is_counted_once_in_its_bucket(start_engine):
    engine = start_engine()
    answer = Answer()
    # The first token has no gap; the second Delta always has later tokens.
    answer.on_delta = lambda: time.sleep(PAUSE_S) if len(answer.events) == 2 else None
    engine.submit(request(prompt_of(8), NUM_TOKENS), answer)
    answer.finished()
    counts = engine.counts()
    at_most_2_5_s, at_most_10_s = (counts.gaps_up_to[GAP_BOUNDS_S.index(bound)] for bound in (2.5, 10.0))
    assert at_most_10_s - at_most_2_5_s == 1
    assert counts.gap_sum_s >= PAUSE_S


def test_failed_steps_are_counted(start_engine):
    engine = start_engine(wrap=Poisoned)
    prompt = [*prompt_of(8), POISON]
    ask(engine, request(prompt, NUM_TOKENS)).failed()
    assert engine.counts().num_failed_steps >= 1


def test_memory_counts_come_from_mlx(start_engine):
    engine = start_engine()
    ask(engine, request(prompt_of(8), NUM_TOKENS)).finished()
    counts = engine.counts()
    assert 0 < counts.active_bytes <= counts.peak_bytes
    assert counts.cache_bytes >= 0


def test_hits_and_misses_of_the_prefix_cache_are_counted(start_engine):
    engine = start_engine()
    for _ in range(2):
        ask(engine, request(prompt_of(64), NUM_TOKENS)).finished()
    status = engine.prefix_status()["target"]
    assert status["hits"] == status["misses"] == 1
    assert 0 < status["num_bytes"] <= status["budget_bytes"]
    assert start_engine(prefix_cache_bytes=0).prefix_status() == {}


def test_the_draft_model_s_prefix_cache_is_counted_apart(start_engine):
    engine = start_engine(
        make_sources=lambda _: DraftSources({}, scored(1.0)),
        load_draft=lambda _: make_loaded("llama"),
        draft_model="the one that load_draft makes",
    )
    for _ in range(2):
        ask(engine, request(prompt_of(64), NUM_TOKENS)).finished()
    engine.margin((1, 2, 3))
    target, draft = (engine.prefix_status()[model] for model in ("target", "draft"))
    assert set(draft) == set(target)
    assert draft["hits"] == draft["misses"] == 1
    assert 0 < draft["num_bytes"] <= draft["budget_bytes"]


def test_every_metric_of_the_prefix_cache_has_its_count(start_engine):
    scrape = SimpleNamespace(prefixes=start_engine().prefix_status())
    metrics = [metric for group in GROUPS if group.title == "The prefix cache" for metric in group.metrics]
    assert metrics
    assert all(metric.read(scrape).keys() == {"target"} for metric in metrics)


def test_counts_are_available_after_the_engine_has_stopped(start_engine):
    engine = start_engine()
    ask(engine, request(prompt_of(8), NUM_TOKENS)).finished()
    before = engine.counts()
    engine.stop(drain_s=0)
    assert engine.counts().gaps_up_to == before.gaps_up_to
    assert engine.prefix_status() == {}
