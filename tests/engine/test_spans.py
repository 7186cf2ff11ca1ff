"""Every moment of the engine's thread counts at one span, and no work is counted twice."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.suffix import SuffixDrafter
from reprise.engine.interface.request import DraftChoice, Grammar
from reprise.engine.interface.spans import OTHER, EngineSpan, SpanClock, span, spend
from reprise.engine.speculative.proposers import DraftSources
from tests.engine.support import ask, prompt_of, request

SPANS = get_args(EngineSpan)


class Clock:
    """A clock that moves only when told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def spans(clock):
    made = SpanClock(SPANS, clock)
    made.start()
    yield made
    made.stop()


def test_an_inner_span_pauses_the_outer_one(clock, spans):
    @span("planning")
    def plan():
        clock.now_s += 1
        with span("drafters"):
            clock.now_s += 10
        clock.now_s += 100

    clock.now_s += 1000
    plan()
    clock.now_s += 5000
    with span("idle"):
        pass
    expected = {"planning": 101, "drafters": 10, OTHER: 6000}
    assert spans.seconds == dict.fromkeys(SPANS, 0) | expected


def test_what_was_measured_already_is_moved(clock, spans):
    with span("planning"):
        clock.now_s += 1
        spend("drafters", 0.25)
        clock.now_s += 1
    assert (spans.seconds["planning"], spans.seconds["drafters"]) == (1.75, 0.25)


def test_a_span_ends_with_an_error(clock, spans):
    @span("planning")
    def fail():
        clock.now_s += 1
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            fail()
    clock.now_s += 5
    with span("idle"):
        pass
    assert (spans.seconds["planning"], spans.seconds[OTHER]) == (2, 5)


@given(st.lists(st.tuples(st.sampled_from([*SPANS, None]), st.integers(0, 99))))
def test_the_seconds_of_all_stations_are_the_time_that_passed(path):
    clock, num_entered = Clock(), 0
    spans = SpanClock(SPANS, clock)
    for name, taken_s in path:
        clock.now_s += taken_s
        if name is not None:
            spans.enter(name)
            num_entered += 1
        elif num_entered:
            spans.leave()
            num_entered -= 1
    spans.enter("idle")
    assert sum(spans.seconds.values()) == clock.now_s


def test_other_threads_measure_nothing():
    @span("planning")
    def plan():
        return 5

    assert plan() == 5


def test_the_engine_visits_every_span(start_engine):
    sources = DraftSources({"ngram-simple": SuffixDrafter(0, name="ngram-simple")}, lambda _: 1.0)
    engine = start_engine(make_sources=lambda _: sources, draft_type="ngram-simple")
    ask(engine, request(prompt_of(64), 12)).finished()
    ask(engine, replace(request(prompt_of(64), 12), draft=DraftChoice("none"))).finished()
    ask(engine, replace(request(prompt_of(64), 12), grammar=Grammar("regex", "[a-z ]+"))).finished()
    spent_s = engine.counts().span_s
    assert set(spent_s) == {*SPANS, OTHER}
    assert {name for name, seconds in spent_s.items() if not seconds} <= {"draft_model", "trials"}
