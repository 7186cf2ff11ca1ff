"""A step over several rows fails: bisection finds the guilty row, and the others lose only time."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.interface.request import GenerationRequest
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.support import prompt_of, request

POISON = 4000


class Fragile:
    """A model that fails in chosen steps, and records the number of rows of every step.

    fails: takes the (rows, width) ids of a step and returns whether it fails.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, model.layers
        self.num_rows: list[int] = []
        self.num_failed = 0
        self.fails: Any = lambda _: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.num_rows.append(tokens.shape[0])
        if self.fails(tokens):
            self.num_failed += 1
            raise RuntimeError("a broken step")
        logits: mx.array = self.model(tokens, cache=cache)
        return logits


def make_requests(num: int, **settings: Any) -> list[GenerationRequest]:
    return [request(prompt_of(12 + i, i), name=str(i), temperature=0.9, **settings) for i in range(num)]


def fragile(name: str = "llama", **settings: Any) -> tuple[Driven, Fragile]:
    """Make a worker whose model is Fragile; return both."""
    loaded = loaded_once(name)
    model = Fragile(loaded.model)
    return Driven(replace(loaded, model=model), **settings), model


def check_all_but(
    driven: Driven, requests: list[GenerationRequest], guilty: Collection[str] = (), name: str = "llama"
) -> None:
    """Finish; check that the guilty requests failed, and that all others equal the plain loop."""
    driven.finish()
    for one in requests:
        if one.id in guilty:
            assert driven.answers[one.id].failed().kind == "request"
        else:
            assert list(driven.answers[one.id].finished().tokens) == expected_tokens(name, one)
    assert not driven.worker.live


@pytest.mark.parametrize("guilty", [0, 3, 7])
def test_one_of_eight_rows_is_found_in_four_failed_steps(guilty: int) -> None:
    driven, model = fragile(max_rows=8)
    requests = make_requests(8)
    bad = request([*prompt_of(12, 77), POISON], name="bad")
    requests[guilty] = bad
    for one in requests:
        driven.ask(one)
    model.fails = lambda tokens: (tokens == POISON).any().item()
    driven.step_until(lambda: driven.answers["bad"].events != [])
    assert model.num_failed <= 4
    # All others continue in one batch at once.
    model.num_rows.clear()
    driven.step_until(lambda: 7 in model.num_rows)
    check_all_but(driven, requests, {"bad"})


def test_two_that_break_steps_are_both_found() -> None:
    driven, model = fragile(max_rows=8)
    requests = [*make_requests(4), *(request([*prompt_of(9, i), POISON], name=f"bad {i}") for i in (1, 2))]
    model.fails = lambda tokens: (tokens == POISON).any().item()
    for one in requests:
        driven.ask(one)
    check_all_but(driven, requests, {"bad 1", "bad 2"})


@pytest.mark.parametrize("name", ["llama", "gemma3_text"], ids=["batched", "separate"])
def test_a_fault_that_comes_once_fails_nobody(name: str) -> None:
    driven, model = fragile(name, max_rows=4)
    requests = make_requests(6)
    for one in requests:
        driven.ask(one)
    driven.step_until(lambda: len(driven.worker.members) == 4)
    model.fails = lambda _: model.num_failed == 0
    check_all_but(driven, requests, name=name)
    assert model.num_failed == 1


def test_where_only_many_rows_together_fail_nobody_is_blamed_and_all_come_to_their_ends() -> None:
    driven, model = fragile(max_rows=8)
    requests = make_requests(8, max_tokens=40)
    model.fails = lambda tokens: tokens.shape[0] > 5
    for one in requests:
        driven.ask(one)
    check_all_but(driven, requests)
    assert model.num_failed < 12


def test_those_on_trial_may_be_cancelled_and_newcomers_wait_for_the_end_of_it() -> None:
    driven, model = fragile(max_rows=8)
    requests = make_requests(6)
    for one in requests:
        driven.ask(one)
    driven.step_until(lambda: len(driven.worker.members) == 6)
    model.fails = lambda _: model.num_failed == 0
    driven.step_until(lambda: model.num_failed == 1)
    late = request(prompt_of(20, 50), name="late")
    driven.ask(late)
    driven.worker.step()
    on_trial = [s.request.id for s in driven.worker.members]
    assert "late" not in on_trial
    assert on_trial
    for name in on_trial:
        driven.worker.cancel(name)
    driven.finish()
    left = [one for one in requests if one.id not in on_trial]
    check_all_but(driven, [*left, late])
    assert {driven.answers[name].failed().kind for name in on_trial} == {"cancelled"}


def test_a_prompt_that_was_being_read_is_read_again_after_the_trial() -> None:
    driven, model = fragile(max_rows=8, max_stall_ms=0, prefill_chunk_tokens=16)
    requests = [*make_requests(3), request(prompt_of(700, 9), name="long")]
    for one in requests:
        driven.ask(one)
    driven.step_until(lambda: len(driven.worker.members) == 3)
    assert [s.request.id for s in driven.worker.prefilling] == ["long"]
    model.fails = lambda tokens: tokens.shape[0] == 3 and model.num_failed == 0
    check_all_but(driven, requests)
    assert model.num_failed == 1
