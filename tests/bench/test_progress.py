"""Progress is a line for each label and each minute."""

import io

import pytest
from rich.console import Console

from reprise.bench.experiment import LINE_EVERY_S, Progress
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("reprise.bench.experiment.monotonic", clock)
    return clock


def make() -> tuple[Progress, io.StringIO]:
    printed = io.StringIO()
    return Progress(Console(file=printed, width=100)), printed


def test_a_line_says_what_is_done_and_how_much(clock: Clock) -> None:
    progress, printed = make()
    progress.show("loading", 0.5)
    clock.now += 10
    progress.show("loading", 0.75)
    assert printed.getvalue() == "loading (50 % done)\n"


def test_without_a_terminal_there_is_a_line_for_each_label_and_each_minute(clock: Clock) -> None:
    progress, printed = make()
    for _ in range(100):
        progress.show("a")
        clock.now += LINE_EVERY_S / 20
    progress.show("b")
    assert [line[0] for line in printed.getvalue().splitlines()] == ["a", *"aaaa", "b"]
