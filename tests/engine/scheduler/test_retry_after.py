"""Retry-After is estimated from how fast requests complete."""

import pytest

from engine.request import EngineError
from engine.scheduler import retry_after
from engine.scheduler.retry_after import MAX_WAIT_S, CompletionRate
from tests.engine.conftest import StartEngine
from tests.engine.support import Answer, ask, prompt_of, request


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test moves."""
    now = [100.0]
    monkeypatch.setattr(retry_after, "perf_counter", lambda: now[0])
    return now


def test_before_two_have_ended_nothing_is_known(clock: list[float]) -> None:
    del clock
    ends = CompletionRate()
    ends.note_end()
    assert ends.wait_s(8, 1.5) == 1.5


def test_at_two_a_second_eight_take_four_seconds(clock: list[float]) -> None:
    ends = CompletionRate()
    for _ in range(200):
        clock[0] += 0.5
        ends.note_end()
    assert ends.wait_s(8, 1.0) == pytest.approx(4.0)


def test_a_pause_lengthens_the_wait_but_not_for_ever(clock: list[float]) -> None:
    ends = CompletionRate()
    for _ in range(5):
        clock[0] += 0.5
        ends.note_end()
    clock[0] += 2.0
    assert ends.wait_s(1, 1.0) == pytest.approx(1.0)
    clock[0] += 10_000
    assert ends.wait_s(1, 1.0) == MAX_WAIT_S


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
