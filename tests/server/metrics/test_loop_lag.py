"""The lag of the event loop is what its timers are late, and what held it is named."""

import asyncio
import time

import pytest

from reprise.engine.interface.spans import OTHER, SpanClock, span
from reprise.server.metrics.loop_lag import HELD_S, NOT_HELD, PERIOD_S, LoopLag


class FakeLoop:
    """An event loop with one timer, which fires when it is told to."""

    def __init__(self):
        self.now_s = 5.0
        self.due = 0.0
        self.is_cancelled = False

    def time(self):
        return self.now_s

    def call_at(self, due, callback):
        self.due, self.fire = due, callback
        return self

    def cancel(self):
        self.is_cancelled = True


def test_the_time_that_a_timer_is_late_is_observed():
    loop, observed = FakeLoop(), []
    lag = LoopLag(loop, SpanClock(["bodies"]), observed.append, lambda *_: None)
    for late_s in (0.0, 0.75, 0.25):
        loop.now_s = loop.due + late_s
        loop.fire()
        assert loop.due == loop.now_s + PERIOD_S
    assert observed == [0.0, 0.75, 0.25]
    lag.stop()
    assert loop.is_cancelled


@pytest.mark.parametrize(("spent_s", "held_by"), [(0.6, OTHER), (0.1, NOT_HELD)])
def test_a_late_timer_is_a_hold_by_the_loop_only_if_it_worked(spent_s, held_by):
    loop, holds, spent = FakeLoop(), [], [0.0]
    lag = LoopLag(
        loop, SpanClock(["bodies"]), lambda _: None, lambda *hold: holds.append(hold), lambda: spent[0]
    )
    loop.now_s, spent[0] = loop.due + 2.0, spent_s
    loop.fire()
    lag.stop()
    assert [hold[:3] for hold in holds] == [(held_by, 2.0, pytest.approx(spent_s - PERIOD_S))]


async def test_a_hold_names_the_span_and_the_line():
    clock, held = SpanClock(["bodies", "format"]), asyncio.get_running_loop().create_future()
    clock.start()
    lag = LoopLag(asyncio.get_running_loop(), clock, lambda _: None, lambda *hold: held.set_result(hold))
    with span("bodies"):
        work_until_cpu(time.thread_time() + 3 * HELD_S + PERIOD_S)
    name, _, own_s, where = await held
    lag.stop()
    clock.stop()
    assert (name, own_s > HELD_S) == ("bodies", True)
    assert "work_until_cpu" in where


def work_until_cpu(spent_s):
    while time.thread_time() < spent_s:
        pass
