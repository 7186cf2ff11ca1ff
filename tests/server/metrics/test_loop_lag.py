"""The lag of the event loop is what its timers are late."""

from server.metrics.loop_lag import PERIOD_S, LoopLag


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
    lag = LoopLag(loop, observed.append)
    for late_s in (0.0, 0.75, 0.25):
        loop.now_s = loop.due + late_s
        loop.fire()
        assert loop.due == loop.now_s + PERIOD_S
    assert observed == [0.0, 0.75, 0.25]
    lag.stop()
    assert loop.is_cancelled
