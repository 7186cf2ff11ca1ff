"""Waits come in the order of dispatch, so each measured time belongs to what was waited for."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.batch.batch import Device
from reprise.engine.memory.prefill_plan import MIN_CHUNK_TOKENS, PrefillCosts
from reprise.engine.speculative.proposers import DraftSources
from tests.clock import Clock
from tests.drafters.fakes import Coin, scored
from tests.engine.driven import Driven, expected_tokens
from tests.engine.support import make_loaded, prompt_of, request


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr("reprise.engine.batch.batch.perf_counter", clock)
    return clock


def test_other_work_is_not_part_of_a_step(clock: Clock) -> None:
    timed, taken = Device(), []
    timed.lap()
    clock.now += 3
    assert timed.lap() == 3
    timed.dispatch([mx.zeros(3)], taken.append, fail)
    clock.now += 2
    timed.settle()
    clock.now += 1
    assert timed.lap() == 1
    assert taken == [2]


def test_earlier_work_is_waited_for_before_other_work_is_dispatched(clock: Clock) -> None:
    timed, taken = Device(), []
    for seconds in (2, 5):
        timed.dispatch([mx.zeros(3)], taken.append, fail)
        clock.now += seconds
    timed.settle()
    assert taken == [2, 5]


def test_time_in_which_the_device_was_idle_is_not_counted(clock: Clock) -> None:
    timed, taken = Device(), []
    timed.lap()
    clock.now += 60
    timed.dispatch([mx.zeros(3)], taken.append, fail)
    clock.now += 2
    timed.settle()
    assert taken == [2]


def test_after_a_reset_nothing_in_flight_is_measured(clock: Clock) -> None:
    timed, taken = Device(), []
    timed.dispatch([mx.zeros(3)], taken.append, fail)
    timed.reset()
    assert timed.lap() is None
    timed.dispatch([mx.zeros(3)], taken.append, fail)
    clock.now += 2
    timed.settle()
    assert taken == [None, 2]


def test_steps_that_contain_something_else_are_not_measured_but_chunks_are(clock: Clock) -> None:
    timed, taken = Device(), []
    timed.lap()
    timed.dispatch([mx.zeros(3)], taken.append, fail)
    timed.skip_moves()
    clock.now += 2
    timed.settle()
    assert timed.lap() is None
    clock.now += 3
    assert timed.lap() == 3
    assert taken == [2]


def test_a_fault_in_other_work_is_told_to_its_owner_once() -> None:
    def fail_to_read(_: float | None) -> None:
        raise ValueError("odd")

    timed, faults = Device(), []
    timed.dispatch([mx.zeros(3)], fail_to_read, faults.append)
    timed.settle()
    assert [str(fault) for fault in faults] == ["odd"]
    timed.dispatch([], fail_to_read, fail)
    with pytest.raises(ValueError, match="odd"):
        timed.settle()
    timed.settle()


def fail(fault: Exception) -> None:
    raise fault


class Counting:
    """A model that notes what is dispatched: chunks of prompts, and steps of rows."""

    def __init__(self, model: Any, dispatched: list[str]) -> None:
        self._model = model
        self._dispatched = dispatched

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        is_chunk = tokens.shape == (1, MIN_CHUNK_TOKENS)
        self._dispatched.append("chunk" if is_chunk else "step")
        logits: mx.array = self._model(tokens, cache=cache)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@pytest.mark.parametrize("drafts", ["no drafts", "drafts"])
def test_chunks_and_steps_are_waited_for_in_the_order_of_dispatch(
    drafts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched: list[str] = []
    waited: list[str] = []
    asked = [request(prompt_of(12), 60, name="decodes"), request(prompt_of(41, 3), 4, name="joins")]
    known = {one.prompt: expected_tokens("llama", one) for one in asked}
    coin = Coin(known, 1.0 if drafts == "drafts" else 0.0, num_ids=4096, name="suffix")
    driven = Driven(
        make_loaded("llama", lambda model: Counting(model, dispatched)),
        (lambda _: DraftSources({"suffix": coin}, scored(1.0))) if drafts == "drafts" else None,
        draft_type="suffix" if drafts == "drafts" else "none",
        num_draft_tokens=2,
        max_stall_ms=0,
        prefix_cache_bytes=0,
    )
    driven.ask(asked[0])
    driven.step_until(lambda: len(driven.worker.members) == 1 and len(driven.answers["decodes"].events) > 1)
    driven.ask(asked[1])
    dispatched.clear()
    lap, observe = Device.lap, PrefillCosts.observe

    def note_step(clock: Device) -> float | None:
        waited.append("step")
        return lap(clock)

    def note_chunk(costs: PrefillCosts, num_tokens: int, num_before: int, seconds: float | None) -> None:
        waited.append("chunk")
        assert seconds is not None
        observe(costs, num_tokens, num_before, seconds)

    monkeypatch.setattr(Device, "lap", note_step)
    monkeypatch.setattr(PrefillCosts, "observe", note_chunk)
    in_flight = ["step"] if driven.worker.device.step else []
    driven.step_until(lambda: len(driven.worker.members) == 2)
    assert dispatched.count("chunk") == 10
    # All but the last were waited for, each before anything else was dispatched.
    assert waited == (in_flight + dispatched)[: len(waited)]
    assert waited.count("chunk") == 9


def test_a_step_that_is_read_before_the_next_is_dispatched_does_not_teach_what_steps_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLX's CPU build holds up its dispatch until it is nearly computed, so it seems to take no time."""
    asked = request(prompt_of(12), 60, name="decodes")
    known = {asked.prompt: expected_tokens("llama", asked)}
    coin = Coin(known, 0.5, num_ids=4096, name="suffix")
    driven = Driven(
        make_loaded("llama"),
        lambda _: DraftSources({"suffix": coin}, scored(1.0)),
        draft_type="suffix",
        num_draft_tokens=2,
        prefix_cache_bytes=0,
    )
    worker, read_early, learned = driven.worker, [], []
    read, charge = worker._fetch_in_flight, worker.planner.charge_plain
    plan = worker.planner.plan

    def plan_twice(members: Any) -> Any:
        # The forecast drafts; with the step in flight read, nothing is.
        return plan(members) if worker.device.step and len(members[0].tokens) % 3 else []

    def note_read() -> None:
        before = len(learned)
        read()
        read_early.extend(range(before, len(learned)))

    def note_charge(budgets: Any, under: Any, taken_s: Any, is_steady: bool, *rest: Any) -> None:
        learned.append(is_steady)
        charge(budgets, under, taken_s, is_steady, *rest)

    monkeypatch.setattr(worker.planner, "plan", plan_twice)
    monkeypatch.setattr(worker, "_fetch_in_flight", note_read)
    monkeypatch.setattr(worker.planner, "charge_plain", note_charge)
    driven.ask(asked)
    driven.finish()
    assert len(read_early) > 5
    assert not any(learned[at] for at in read_early)
    assert any(learned)
