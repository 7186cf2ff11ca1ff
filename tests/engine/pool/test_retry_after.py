"""Retry-After is estimated from how long requests take."""

import pytest

from reprise.engine.interface.errors import EngineError
from reprise.engine.pool import model_engine
from reprise.engine.pool.model_engine import MAX_WAIT_S, MIN_WAIT_S, AnswerTimes
from tests.engine.conftest import StartEngine
from tests.engine.support import Answer, ask, prompt_of, request


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test moves."""
    now = [100.0]
    monkeypatch.setattr(model_engine, "perf_counter", lambda: now[0])
    return now


def test_at_first_it_is_a_second() -> None:
    assert AnswerTimes().wait_s() == MIN_WAIT_S


def test_before_any_has_ended_the_wait_grows_with_the_time_that_the_first_have_taken(
    clock: list[float],
) -> None:
    times = AnswerTimes()
    times.begin()
    clock[0] += 12.0
    assert times.wait_s() == 12.0


@pytest.mark.parametrize("step_s", [0.001, 0.05, 0.2, 1.0])
def test_it_is_as_long_as_answers_take(clock: list[float], step_s: float) -> None:
    times = AnswerTimes()
    times.begin()
    for _ in range(200):
        clock[0] += step_s
        # Forty tokens each, of many at once.
        times.end(40 * step_s, is_last=False)
    assert times.wait_s() == pytest.approx(max(MIN_WAIT_S, 40 * step_s))


def test_after_a_quiet_night_it_is_no_longer_than_before(clock: list[float]) -> None:
    times = AnswerTimes()
    times.begin()
    for _ in range(9):
        times.end(2.0, is_last=False)
    times.end(2.0, is_last=True)
    clock[0] += 30_000
    assert times.wait_s() == 2.0
    times.begin()
    assert times.wait_s() == 2.0


def test_a_pause_lengthens_the_wait_but_not_for_ever(clock: list[float]) -> None:
    times = AnswerTimes()
    times.begin()
    times.end(2.0, is_last=False)
    clock[0] += 7.0
    assert times.wait_s() == 7.0
    # Requests that were never answered say nothing, but that there is progress.
    times.end(None, is_last=False)
    assert times.wait_s() == 2.0
    clock[0] += 10_000
    assert times.wait_s() == MAX_WAIT_S


def test_a_refused_request_gets_a_retry_after(start_engine: StartEngine) -> None:
    engine = start_engine(max_rows=1, max_queue=0)
    for i in range(3):
        ask(engine, request(prompt_of(9), name=str(i), max_tokens=2)).finished()
    running = ask(engine, request(prompt_of(9), name="running", max_tokens=900, logit_bias=((2, -100.0),)))
    with pytest.raises(EngineError) as refused:
        engine.submit(request(prompt_of(9), name="refused"), Answer())
    assert refused.value.code == "queue_full"
    assert 0 < refused.value.retry_after_s <= MAX_WAIT_S
    assert engine.status().retry_after_s > 0
    engine.cancel("running")
    running.failed()
