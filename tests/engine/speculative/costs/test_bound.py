"""The engine keeps the stated bound with costs that are wrong, on a device whose steps take known times."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from reprise.engine.engine import Engine
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice, GenerationRequest
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven
from tests.engine.support import Answer, ask, make_loaded, prompt_of, request

OVERHEAD, PROBING = 0.02, 0.01
NUM_TOKENS = 90


class TimedDevice:
    """A model on a device whose clock the test reads instead of the machine's.

    slowness: how much longer its steps take than step_s(). sleeps: whether they really do.
    """

    def __init__(self, slowness: float = 1.0, sleeps: bool = False) -> None:
        self.slowness, self.sleeps = slowness, sleeps
        self.now_s = 0.0
        self.model: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def wrap(self, model: Any) -> "TimedDevice":
        self.model = model
        return self

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        taken_s = self.slowness * step_s(*tokens.shape)
        self.now_s += taken_s
        if self.sleeps:
            time.sleep(taken_s)
        return self.model(tokens, cache=cache)


def step_s(num_rows: int, width: int) -> float:
    return 0.01 * (1 + 0.04 * (num_rows * width - 1))


class Coin:
    """Drafts the answer's tokens, each correctly with a chance, always eight, and says that it is sure."""

    name = "suffix"

    def __init__(self, chance: float) -> None:
        self.chance, self.rng = chance, random.Random(1)
        self.answers: dict[tuple[int, ...], Sequence[int]] = {}
        self.open_now: dict[int, tuple[Sequence[int], int]] = {}

    def open(self, start: SequenceStart) -> None:
        self.open_now[start.seq] = self.answers[tuple(start.prompt)], 0

    def propose(self, query: DraftQuery) -> Draft:
        answer, at = self.open_now[query.seq]
        tokens = [token if self.rng.random() < self.chance else 0 for token in answer[at : at + query.limit]]
        return Draft(tokens, self.name, 0, 0.95) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        answer, at = self.open_now[seq]
        self.open_now[seq] = answer, at + len(tokens)

    def note_verified(self, *_: Any) -> None:
        pass

    def close(self, seq: int) -> None:
        del self.open_now[seq]


def decode_s(engine: Engine, asked: GenerationRequest) -> tuple[float, list[int]]:
    answer: Answer = ask(engine, asked)
    finished = answer.finished()
    return finished.usage.total_s - finished.usage.first_token_s, list(finished.tokens)


@pytest.mark.parametrize(
    ("plain", "wide", "chance"),
    [
        (1, 0.25, 0.0),
        (4, 1, 0.4),
        (1, 0.25, 0.4),
        (0.25, 0.25, 0.4),
        (1, 4, 0.4),
        (4, 1, 0.95),
        (1, 0.25, 0.95),
    ],
)
def test_no_answer_of_the_engine_is_slower_than_stated(
    plain: float, wide: float, chance: float, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, drafter = TimedDevice(), Coin(chance)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now_s)
    monkeypatch.setattr("reprise.engine.batch.batch.perf_counter", lambda: device.now_s)
    table = {
        (rows, width): step_s(rows, width) * (plain if width == 1 else wide)
        for rows in (1, 2)
        for width in (1, 2, 4, 8, 16)
    }
    engine = start_engine(
        wrap=device.wrap,
        make_sources=lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        costs=StepCosts(table),
        draft_type="suffix",
        num_draft_tokens=8,
    )
    for number in range(2):
        asked = request(prompt_of(20, number), NUM_TOKENS)
        plain_s, tokens = decode_s(engine, replace(asked, draft=DraftChoice("none")))
        drafter.answers[asked.prompt] = tokens
        drafted_s, drafted = decode_s(engine, asked)
        assert drafted == tokens
        assert drafted_s <= (1 + OVERHEAD + PROBING) * plain_s + ALLOWANCE_STEPS * step_s(1, 1)
        if chance > 0.9 and number == 1:
            assert drafted_s < plain_s / 2


@pytest.mark.parametrize(
    ("plain_s", "wrong"),
    [
        pytest.param(0.002, "ten times too dear", marks=pytest.mark.slow),
        (0.05, "ten times too cheap"),
        pytest.param(1.0, "a straight line", marks=pytest.mark.slow),
    ],
)
def test_the_engine_finds_out_that_costs_are_wrong(
    plain_s: float, wrong: str, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = TimedDevice(plain_s / step_s(1, 1))
    monkeypatch.setattr(time, "perf_counter", lambda: device.now_s)
    monkeypatch.setattr("reprise.engine.batch.batch.perf_counter", lambda: device.now_s)
    gains = gains_of_copies(device, wrong, start_engine, num_answers=20)
    assert sum(gains[-4:]) > 0.9 * sum(gains_of_copies(device, "not", start_engine, num_answers=8)[-4:])


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["a straight line", "ten times too dear"])
def test_a_slow_model_finds_out_that_costs_are_wrong(wrong: str, start_engine: StartEngine) -> None:
    """On the machine's clock, as a model that sleeps in each forward pass."""
    device = TimedDevice(3.0, sleeps=True)
    assert min(gains_of_copies(device, wrong, start_engine, num_answers=6)[-2:]) > 2


def gains_of_copies(
    device: TimedDevice, wrong: str, start_engine: StartEngine, num_answers: int
) -> list[float]:
    """Return by how much drafts made each copy faster; every other answer is none, and all keep the bound.

    On a device that sleeps, another process may take time from either answer; there no bound is looked at.
    """
    plain_step_s, drafter, gains = device.slowness * step_s(1, 1), Coin(0.97), []
    factor = {"ten times too dear": 10.0, "ten times too cheap": 0.1}.get(wrong, 1.0)
    table = {
        (1, width): width * plain_step_s
        if wrong == "a straight line"
        else device.slowness * step_s(1, width) * (factor if width > 1 else 1)
        for width in (1, 2, 3, 4, 6, 8, 12, 16)
    }
    engine = start_engine(
        wrap=device.wrap,
        make_sources=lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        costs=StepCosts(table),
        draft_type="suffix",
        num_draft_tokens=15,
    )
    for number in range(num_answers):
        asked = request(prompt_of(20, number), NUM_TOKENS)
        plain_s, tokens = decode_s(engine, replace(asked, draft=DraftChoice("none")))
        drafter.answers[asked.prompt], drafter.chance = tokens, (0.97, 0.0)[number % 2]
        drafted_s, drafted = decode_s(engine, asked)
        assert drafted == tokens
        allowed_s = (1 + OVERHEAD + PROBING) * plain_s + ALLOWANCE_STEPS * plain_step_s
        assert device.sleeps or drafted_s <= allowed_s
        if number % 2 == 0:
            gains.append(plain_s / drafted_s)
    return gains


class Slow(Coin):
    """Takes as long as a step to say that it has nothing."""

    def __init__(self, device: TimedDevice) -> None:
        super().__init__(0.0)
        self.device = device

    def propose(self, query: DraftQuery) -> Draft:  # noqa: ARG002
        self.device.now_s += step_s(1, 1)
        return NO_DRAFT


def test_a_drafter_that_takes_long_is_asked_seldom(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = TimedDevice()
    drafter = Slow(device)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now_s)
    monkeypatch.setattr("reprise.engine.batch.batch.perf_counter", lambda: device.now_s)
    engine = start_engine(
        wrap=device.wrap,
        make_sources=lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        costs=StepCosts({(1, 1): step_s(1, 1), (1, 8): step_s(1, 8)}),
        draft_type="suffix",
        num_draft_tokens=8,
    )
    asked = request(prompt_of(20), 300)
    plain_s, tokens = decode_s(engine, replace(asked, draft=DraftChoice("none")))
    drafter.answers[asked.prompt] = tokens
    drafted_s, drafted = decode_s(engine, asked)
    assert drafted == tokens
    assert drafted_s <= (1 + OVERHEAD + PROBING) * plain_s + ALLOWANCE_STEPS * step_s(1, 1)


def decode_all(device: TimedDevice, asked: Sequence[GenerationRequest], **more: Any) -> list[Finished]:
    """Decode requests that begin together; wide steps are believed to cost what plain ones do."""
    flat = StepCosts({(rows, width): step_s(rows, 1) for rows in (1, 8) for width in (1, 4, 16)})
    loaded = make_loaded("llama", device.wrap)
    driven = Driven(loaded, costs=flat, max_rows=len(asked), prefix_cache_bytes=0, **more)
    answers = [driven.ask(one) for one in asked]
    driven.finish()
    return [answer.finished() for answer in answers]


@pytest.mark.parametrize("case", ["every draft is wrong", "a prediction misleads", "one row of eight drafts"])
def test_an_answer_of_forty_tokens_keeps_the_bound(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = TimedDevice()
    monkeypatch.setattr(time, "perf_counter", lambda: device.now_s)
    monkeypatch.setattr("reprise.engine.batch.batch.perf_counter", lambda: device.now_s)
    num_rows = 8 if case == "one row of eight drafts" else 1
    asked = [request(prompt_of(20, number), 40, name=str(number)) for number in range(num_rows)]
    plain = decode_all(device, [replace(one, draft=DraftChoice("none")) for one in asked])
    first = list(plain[0].tokens)
    if case == "a prediction misleads":
        asked[0] = replace(asked[0], prediction=(*first[:20], *reversed(first)))
        drafted = decode_all(
            device,
            asked,
            make_sources=lambda _: DraftSources(make_drafters(Settings(), "llama"), scored(1.0)),
        )
    else:
        drafter = Coin(0.0)
        drafter.answers[asked[0].prompt] = first
        sources = DraftSources({"suffix": drafter}, scored(1.0))
        asked[1:] = [replace(one, draft=DraftChoice("none")) for one in asked[1:]]
        drafted = decode_all(device, asked, make_sources=lambda _: sources, draft_type="suffix")
    assert drafted[0].usage.drafting.num_drafted
    for before, after in zip(plain, drafted, strict=True):
        assert after.tokens == before.tokens
        spent_s, plain_s = (one.usage.total_s - one.usage.first_token_s for one in (after, before))
        assert spent_s <= (1 + OVERHEAD + PROBING) * plain_s + ALLOWANCE_STEPS * step_s(num_rows, 1)
