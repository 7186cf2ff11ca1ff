"""Prompts that arrive together are computed before their rows decode; others are not waited for."""

from dataclasses import replace

from reprise.engine.batch.batch import NUM_PLAIN
from reprise.engine.generating.worker import MAX_TOGETHER_S, MAX_TOGETHER_STEPS
from tests.engine.driven import Driven
from tests.engine.support import make_loaded, oracle, prompt_of, request


def test_prompts_that_arrive_while_the_first_is_computed_are_decoded_together_with_it() -> None:
    driven = Driven(make_loaded("gemma3_text"), max_rows=8)
    asked = [request(prompt_of(30, at), 6, name=str(at)) for at in range(4)]
    driven.ask(asked[0])
    # The first step learns what prompts cost.
    driven.finish()
    answers = [driven.ask(replace(asked[0], id="again"))]
    driven.step_until(lambda: bool(driven.worker.members))
    answers += [driven.ask(one) for one in asked[1:]]
    driven.step_until(lambda: len(driven.worker.members) == 4)
    assert not any(answer.text for answer in answers)
    driven.finish()
    for one, answer in zip(asked, answers, strict=True):
        assert list(answer.finished().tokens) == oracle(driven.loaded, one)


def test_where_steps_take_long_prompts_may_take_longer_too() -> None:
    driven = Driven(make_loaded("gemma3_text"), max_rows=8)
    driven.worker.queue.prefiller.planner.left_s = lambda _: 2 * MAX_TOGETHER_S  # type: ignore[method-assign]
    for _ in range(NUM_PLAIN):
        driven.worker.device.note_plain(3 * MAX_TOGETHER_S / MAX_TOGETHER_STEPS)
    first = driven.ask(request(prompt_of(30), 40))
    driven.step_until(lambda: bool(driven.worker.members))
    driven.ask(request(prompt_of(25, 1), 4, name="later"))
    driven.step_until(lambda: not driven.worker.prefilling)
    assert not first.text


def test_of_a_model_that_drafts_nothing_steps_are_not_taken_for_long() -> None:
    driven = Driven(make_loaded("gemma3_text"), max_rows=8, prefill_chunk_tokens=4)
    driven.worker.queue.prefiller.planner.left_s = lambda _: 2 * MAX_TOGETHER_S  # type: ignore[method-assign]
    first = driven.ask(request(prompt_of(60), 40))
    driven.step_until(lambda: bool(driven.worker.members))
    driven.ask(request(prompt_of(50, 1), 4, name="later"))
    driven.step_until(lambda: len(driven.worker.prefilling) == 1)
    driven.step_until(lambda: bool(first.text) or not driven.worker.prefilling)
    assert first.text
    driven.finish()


def test_prompts_that_take_long_are_not_waited_for() -> None:
    driven = Driven(make_loaded("gemma3_text"), max_rows=8)
    driven.worker.queue.prefiller.planner.left_s = lambda _: 2 * MAX_TOGETHER_S  # type: ignore[method-assign]
    first = driven.ask(request(prompt_of(30), 40))
    driven.step_until(lambda: bool(driven.worker.members))
    driven.ask(request(prompt_of(300, 1), 4, name="later"))
    driven.step_until(lambda: bool(first.text))
    assert driven.worker.prefilling
    driven.finish()
