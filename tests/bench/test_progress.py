"""The time that is left follows from what this run's own work took, at any speed."""

import io
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from reprise.bench.outputs import LINE_EVERY_S, Work
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr("reprise.bench.outputs.monotonic", clock)
    return clock


def make_work(left: dict[str, float]) -> tuple[Work, io.StringIO]:
    printed = io.StringIO()
    return Work(left, Console(file=printed, width=100)), printed


@pytest.mark.parametrize("step_s", [0.001, 0.05, 0.2, 1.0])
def test_cases_of_unlike_length_count_by_what_they_took(clock: Clock, step_s: float) -> None:
    work, _ = make_work({"short": 4, "long": 4, "new": 2})
    assert work.left_s is None
    for label, steps in (("short", 10), ("long", 100)):
        for _ in range(2):
            work.begin(label)
            clock.now += steps * step_s
            work.advance()
    # Of what never ran, a unit takes what units took on average.
    assert work.left_s == pytest.approx((2 * 10 + 2 * 100 + 2 * 55) * step_s)
    work.begin("long")
    clock.now += 60 * step_s
    assert work.left_s == pytest.approx((2 * 10 + 40 + 100 + 2 * 55) * step_s)


def test_the_last_unit_never_stays_at_a_few_seconds(clock: Clock) -> None:
    work, _ = make_work({"": 2})
    work.begin("case")
    clock.now += 5
    work.advance()
    work.begin("case")
    clock.now += 4
    assert work.left_s == pytest.approx(1)
    # It takes minutes, and then nobody knows.
    clock.now += 240
    assert work.left_s == pytest.approx(239)


def test_work_that_is_not_planned_has_a_share_of_its_own(clock: Clock) -> None:
    work, printed = make_work({"case": 1})
    work.begin("case")
    clock.now += 5
    work.advance()
    assert work.left_s == 0
    work.show("trying", 0.0)
    assert work.left_s is None
    clock.now += 30
    work.show("trying", 0.25)
    assert work.left_s == pytest.approx(90)
    clock.now += 90
    work.show("trying", 0.5)
    assert work.left_s == pytest.approx(120)
    assert "trying (51 % done, about 2 min left)" in printed.getvalue()


def test_what_was_done_before_it_was_looked_at_says_nothing(clock: Clock) -> None:
    work, printed = make_work({})
    work.show("loading", 0.5)
    assert work.left_s is None
    clock.now += 10
    work.show("loading", 0.75)
    assert work.left_s == pytest.approx(10)
    assert printed.getvalue() == "loading (50 % done)\n"


def test_without_a_terminal_there_is_a_line_for_each_part_and_each_minute(clock: Clock) -> None:
    work, printed = make_work({"a": 100, "b": 1})
    for _ in range(100):
        work.begin("a")
        clock.now += LINE_EVERY_S / 20
        work.advance()
    work.begin("b")
    lines = printed.getvalue().splitlines()
    assert [line[0] for line in lines] == ["a", *"aaaaa", "b"]
    shares = [int(found[1]) for line in lines if (found := re.search(r"(\d+) % done", line))]
    assert shares == sorted(shares)


def test_a_new_stage_is_not_measured_by_an_earlier_one(clock: Clock) -> None:
    work, _ = make_work({})
    advance = work.stage("answers", 1)
    clock.now += 100
    advance()
    advance = work.stage("replays", 10)
    assert work.left_s is None
    clock.now += 1
    advance()
    assert work.left_s == pytest.approx(9)
