"""The time that is left follows from what this run's own work took, at any speed."""

import io

import pytest
from rich.console import Console

from reprise.bench.experiment import LINE_EVERY_S, Progress, format_left
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("reprise.bench.experiment.monotonic", clock)
    return clock


def make(units: float) -> tuple[Progress, io.StringIO]:
    printed = io.StringIO()
    progress = Progress(Console(file=printed, width=100))
    progress.plan(units)
    return progress, printed


def test_units_that_are_left_take_as_long_as_those_that_are_done(clock: Clock) -> None:
    progress, printed = make(8)
    assert progress.left_s is None
    for _ in range(2):
        clock.now += 10
        progress.advance()
    assert progress.left_s == pytest.approx(60)
    progress.show("case")
    assert printed.getvalue() == "case (25 % done, about 60 s left)\n"


def test_work_that_is_not_planned_has_a_share_of_its_own(clock: Clock) -> None:
    progress, printed = make(4)
    progress.show("loading", 0.5)
    clock.now += 10
    progress.show("loading", 0.75)
    assert printed.getvalue() == "loading (50 % done)\n"


def test_without_a_terminal_there_is_a_line_for_each_label_and_each_minute(clock: Clock) -> None:
    progress, printed = make(101)
    for _ in range(100):
        progress.show("a")
        clock.now += LINE_EVERY_S / 20
        progress.advance()
    progress.show("b")
    assert [line[0] for line in printed.getvalue().splitlines()] == ["a", *"aaaa", "b"]


def test_the_time_is_rounded_as_an_estimate_should_be() -> None:
    assert [format_left(seconds) for seconds in (5, 240, 9000)] == [
        "about 5 s left", "about 4 min left", "about 2.5 h left"
    ]  # fmt: skip
