"""Prompts with pictures get the tokens of a plain loop, and no control that leaves a part out does."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice, GenerationRequest
from reprise.engine.memory.prefill_plan import MIN_CHUNK_TOKENS
from reprise.engine.scheduler.read_ahead import MIN_TOKENS
from reprise.engine.speculative.heads.assistant import AssistantHead
from reprise.engine.speculative.heads.head import find_ends
from reprise.engine.speculative.heads.head_drafter import NamedHead
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.vision import image_features
from reprise.engine.vision.keys import prompt_keys
from reprise.engine.vision.layers import WORK
from tests.combinations import spread
from tests.drafters.fakes import scored
from tests.engine.driven import Driven, loaded_once
from tests.engine.speculative.heads.test_assistant import assistant_config
from tests.engine.support import prompt_of
from tests.engine.vision.seeing import CONFIGS, TWINS, Picture, expected, looked_at, make_seeing, seeing

BREAKS = ("mistral3", "pixtral")
SLOW = pytest.mark.slow


def slow_but(*names: str) -> list[Any]:
    """Return all families; those that are not named are tried with the slow tests."""
    return [pytest.param(name, marks=[] if name in names else [SLOW]) for name in CONFIGS]


def two_pictures(name: str, number: int = 0, **options: Any) -> GenerationRequest:
    """A prompt with two pictures, other ones for every number."""
    parts = prompt_of(9, number), Picture(number), prompt_of(5), Picture(50 + number, 3, 2), prompt_of(6)
    return looked_at(*parts, name=str(number), breaks=name in BREAKS, **{"max_tokens": 8} | options)


def end_of(driven: Driven, asked: GenerationRequest) -> Finished:
    told = driven.ask(asked)
    driven.finish()
    return told.finished()


def answer(driven: Driven, asked: GenerationRequest) -> list[int]:
    return list(end_of(driven, asked).tokens)


def test_a_head_that_reads_what_the_model_keeps_drafts_about_pictures() -> None:
    loaded = replace(seeing("gemma3"))
    head = AssistantHead(assistant_config(vocab_size=loaded.info.vocab_size), find_ends(loaded.model))
    sources = DraftSources({}, scored(0.0))
    driven = Driven(loaded, lambda _: sources, find_head=lambda _: NamedHead(head, "mtp"), draft_type="mtp")
    asked = [two_pictures("gemma3", number, max_tokens=40) for number in (0, 1, 0)]
    for one in asked:
        end = end_of(driven, one)
        assert list(end.tokens) == expected("gemma3", one)
        assert [name for name, *_ in end.usage.drafting.by_source] == ["mtp"]


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        pytest.param(*one.values, id=one.id, marks=[*one.marks, *([SLOW] if "moe" in str(one.id) else [])])
        for one in spread(list(CONFIGS), [1, 7, 16, 2048])
    ],
)
def test_chunks_of_any_size_equal_the_plain_loop(name: str, chunk: int) -> None:
    driven = Driven(replace(seeing(name)), prefill_chunk_tokens=chunk)
    assert answer(driven, two_pictures(name)) == expected(name, two_pictures(name))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if at > 2 else []) for at, name in enumerate(CONFIGS)],
)
def test_a_batch_of_eight_with_rows_of_text_equals_the_plain_loop(name: str) -> None:
    asked = [
        two_pictures(name, number, temperature=0.9 * (number % 4 > 1), seed=number, max_tokens=6 + number)
        if number % 2
        else looked_at(prompt_of(4 + 9 * number, number), name=str(number), max_tokens=6 + number)
        for number in range(8)
    ]
    driven = Driven(replace(seeing(name)), max_stall_ms=0)
    answers = [driven.ask(one) for one in asked]
    driven.finish()
    assert [list(one.finished().tokens) for one in answers] == [expected(name, one) for one in asked]


@contextmanager
def nothing(*_: Any) -> Iterator[None]:
    yield


def in_a_line(images: Any, places_of: Any, start: int, end: int) -> np.ndarray:
    del images, places_of
    return np.tile(np.arange(start, end), (3, 1))


CONTROLS: dict[str, tuple[str, Any, str, Any]] = {
    "delta 0": ("qwen3_vl", image_features.Looking, "delta", 0),
    "plain rope in the picture": ("qwen3_vl", image_features, "find_places", in_a_line),
    "no deepstack": ("qwen3_vl", image_features, "features_behind", nothing),
    "causal pictures": ("gemma3", image_features, "images_seen_whole", nothing),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_leaving_a_part_out_is_noticed(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, part, instead = CONTROLS[control]
    asked = two_pictures(name)
    monkeypatch.setattr(owner, part, instead)
    assert answer(Driven(replace(seeing(name))), asked) != expected(name, asked)


def test_swapped_pictures_are_noticed() -> None:
    asked = looked_at(prompt_of(5), Picture(1), prompt_of(5), Picture(2), prompt_of(4), max_tokens=8)
    one, other = asked.images
    swapped = replace(asked, images=(replace(other, start=one.start), replace(one, start=other.start)))
    driven = Driven(replace(seeing("mistral3")))
    assert answer(driven, swapped) == expected("mistral3", swapped) != expected("mistral3", asked)


def twins(num_after: int = 40, **options: Any) -> list[GenerationRequest]:
    """Two prompts that differ only in pictures with the same key."""
    return [
        looked_at(
            prompt_of(5), twin, prompt_of(num_after), name=str(twin.seed), **{"max_tokens": 8} | options
        )
        for twin in TWINS
    ]


@pytest.mark.parametrize("knows_pictures", [True, False])
def test_only_digests_tell_apart_pictures_with_the_same_key(
    knows_pictures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = twins()
    assert prompt_keys(first.prompt, first.images, 4096) == prompt_keys(second.prompt, second.images, 4096)
    if not knows_pictures:
        monkeypatch.setattr(Sequence, "pictures", ())
    driven = Driven(replace(seeing("mistral3")))
    assert answer(driven, first) == expected("mistral3", first)
    end = end_of(driven, second)
    assert (list(end.tokens) == expected("mistral3", second)) is knows_pictures
    assert end.usage.num_cached_tokens == (5 if knows_pictures else 45)


@pytest.mark.parametrize("name", slow_but("qwen3_5", "mistral3", "lfm2_vl"))
@pytest.mark.parametrize("first_is", ["prefilling", "decoding", "cancelled", "ended"])
def test_no_prompt_takes_a_prefix_of_another_picture_with_the_same_key(name: str, first_is: str) -> None:
    first, second = twins()
    driven = Driven(replace(seeing(name)), prefill_chunk_tokens=8)
    told = driven.ask(first)
    if first_is == "prefilling":
        driven.step_until(lambda: bool(driven.worker.prefilling))
    elif first_is == "decoding":
        driven.step_until(lambda: len(told.text) > 0)
    elif first_is == "cancelled":
        # Gemma 3 reads an image at once, with all that is left of so short a prompt.
        begun = 0 if name == "gemma3" else 20
        driven.step_until(lambda: any(s.prefill.num_computed > begun for s in driven.worker.prefilling))
        driven.worker.cancel(first.id)
    else:
        driven.finish()
    end = end_of(driven, second)
    assert list(end.tokens) == expected(name, second)
    assert end.usage.num_cached_tokens <= 5
    # Each is kept beside the other, and found again.
    for again in (first, second):
        end = end_of(driven, again)
        assert list(end.tokens) == expected(name, again)
        assert end.usage.num_cached_tokens > 5 or first_is == "cancelled"


def test_a_served_draft_model_takes_no_prefix_of_another_picture() -> None:
    driven = Driven(replace(seeing("mistral3")), draft=loaded_once("llama"))
    for asked in twins():
        by_name = replace(asked, draft=DraftChoice("draft-model"))
        assert answer(driven, by_name) == expected("mistral3", asked)


@pytest.mark.parametrize("name", ["qwen3_vl", "lfm2_vl"])
def test_files_of_pictures_with_the_same_key_stand_beside_each_other(name: str, tmp_path: Any) -> None:
    asked = twins(300, max_tokens=4)
    for round_ in range(2):
        for one in asked:
            # The memory of each is its own: only files are shared.
            driven = Driven(replace(seeing(name)), prefix_cache_dir=str(tmp_path))
            end = end_of(driven, one)
            driven.worker.queue.prefixes.close()
            assert list(end.tokens) == expected(name, one)
            assert (end.usage.num_cached_tokens > one.images[0].end) == bool(round_)


Part = SequenceOf[int] | Picture


def chat(make: Callable[[int], Part], driven: Driven) -> tuple[list[int], list[GenerationRequest]]:
    """Have a chat of five turns that gains what make() gives in each; return what was cached, and turns."""
    parts: list[Part] = [prompt_of(40)]
    cached, turns = [], []
    for turn in range(5):
        parts += [make(turn), prompt_of(45, turn)]
        turns.append(looked_at(*parts, name=str(turn), max_tokens=6))
        end = end_of(driven, turns[-1])
        parts.append(list(end.tokens))
        cached.append(end.usage.num_cached_tokens)
    return cached, turns


@pytest.mark.parametrize("name", slow_but("qwen3_5", "mistral3"))
def test_a_chat_that_gains_a_picture_a_turn_reuses_what_text_would(name: str) -> None:
    loaded = seeing(name)
    of_text, _ = chat(lambda turn: prompt_of(6, 70 + turn), Driven(replace(loaded)))
    driven = Driven(replace(loaded))
    of_pictures, turns = chat(Picture, driven)
    assert sum(of_pictures) >= 0.9 * sum(of_text) > 0
    last = turns[-1]
    changed = replace(last.images[2], key=b"another picture.")
    other = replace(last, images=(*last.images[:2], changed, *last.images[3:]))
    end = end_of(driven, other)
    assert 0 < end.usage.num_cached_tokens <= changed.start
    assert list(end.tokens) == expected(name, other)


def test_a_prompt_that_was_cancelled_within_a_picture_goes_on_before_it() -> None:
    asked = looked_at(prompt_of(9), Picture(7, 4, 4), prompt_of(6), max_tokens=8)
    driven = Driven(replace(seeing("qwen3_vl")), prefill_chunk_tokens=1)
    driven.ask(replace(asked, id="first"))
    start = asked.images[0].start
    driven.step_until(lambda: any(s.prefill.num_computed > start + 3 for s in driven.worker.prefilling))
    driven.worker.cancel("first")
    end = end_of(driven, asked)
    assert end.usage.num_cached_tokens == start
    assert list(end.tokens) == expected("qwen3_vl", asked)


@pytest.mark.parametrize("name", slow_but("qwen3_vl", "gemma3"))
def test_a_prompt_with_a_picture_is_read_ahead(name: str) -> None:
    parts = prompt_of(9), Picture(7), prompt_of(45, 3)
    asked = looked_at(*parts, prompt_of(6, 5), max_tokens=8, breaks=name in BREAKS)
    driven = Driven(replace(seeing(name)), prefill_chunk_tokens=16)
    certain = replace(asked, id="expected", prompt=asked.prompt[:-6], max_tokens=1)
    sequence = Sequence.of(certain, lambda _: None, driven.loaded.tokenizer, driven.grammars)
    driven.worker.read_ahead.expect([sequence])
    # Requests come in the middle of the picture, which is looked at again.
    for _ in range(6):
        driven.worker.read_next()
        driven.worker.stop_reading()
    while driven.worker.read_next():
        pass
    driven.worker.stop_reading()
    end = end_of(driven, asked)
    # What is left may be too little to be read.
    assert end.usage.num_read_ahead_tokens >= len(certain.prompt) - MIN_TOKENS > asked.images[0].start
    assert list(end.tokens) == expected(name, asked)


def test_pictures_survive_a_restart_in_files_and_are_not_looked_at_again(tmp_path: Any) -> None:
    asked = looked_at(prompt_of(9), Picture(3), prompt_of(300), max_tokens=8)
    loaded = make_seeing("qwen3_vl")
    assert loaded.sight
    first = Driven(replace(loaded), prefix_cache_dir=str(tmp_path))
    before = answer(first, asked)
    first.worker.queue.prefixes.close()
    num_looked = loaded.sight.num_looked
    second = Driven(replace(loaded), prefix_cache_dir=str(tmp_path))
    end = end_of(second, asked)
    assert end.usage.num_cached_tokens > asked.images[0].end
    assert list(end.tokens) == before == expected("qwen3_vl", asked)
    assert loaded.sight.num_looked == num_looked


def test_rows_decode_between_the_slices_of_a_tower() -> None:
    loaded = make_seeing("mistral3")
    assert loaded.sight
    tower: Any = loaded.sight.tower
    tower.num_slices = 20
    driven = Driven(loaded, max_stall_ms=0)
    text = looked_at(prompt_of(5), name="text", max_tokens=60)
    told = driven.ask(text)
    driven.step_until(lambda: bool(told.text))
    asked = looked_at(prompt_of(3), Picture(1, 4, 6), prompt_of(4), max_tokens=8)
    seen = driven.ask(asked)
    before, num_steps = len(driven.worker.members[0].tokens), 0

    def is_seen() -> bool:
        nonlocal num_steps
        num_steps += 1
        return bool(tower.num_done == tower.num_slices)

    driven.step_until(is_seen)
    # Four slices a step, as nothing says how long they take; and a token of the row in each.
    assert num_steps > tower.num_slices // 4
    assert len(driven.worker.members[0].tokens) - before >= num_steps - 2
    driven.finish()
    assert list(seen.finished().tokens) == expected("mistral3", asked)
    assert list(told.finished().tokens) == expected("mistral3", text)


@pytest.mark.parametrize(("units_of_row", "num_rows"), [(0.5, 8), (1, 4), (1.5, 2), (2.5, 1), (10, 1)])
def test_a_step_does_no_second_slice_that_is_larger_than_what_is_left_of_its_plan(
    units_of_row: float, num_rows: int
) -> None:
    loaded = make_seeing("mistral3")
    assert loaded.sight
    tower: Any = loaded.sight.tower
    tower.num_slices, tower.work = 40, int(units_of_row * WORK)
    driven = Driven(loaded, max_stall_ms=0)
    told = driven.ask(looked_at(prompt_of(5), name="text", max_tokens=60))
    driven.step_until(lambda: bool(told.text))
    driven.ask(looked_at(prompt_of(3), Picture(1), prompt_of(4), max_tokens=4))
    done: list[int] = []
    while tower.num_done < tower.num_slices:
        before = tower.num_done
        driven.worker.step()
        done.append(tower.num_done - before)
    # The plan is MIN_CHUNK_TOKENS units, as nothing may take time.
    assert max(done) == num_rows


def test_a_prompt_can_be_cancelled_while_the_tower_looks() -> None:
    loaded = make_seeing("mistral3")
    assert loaded.sight
    tower: Any = loaded.sight.tower
    tower.num_slices = 50
    driven = Driven(loaded, max_stall_ms=0)
    told = driven.ask(looked_at(prompt_of(3), Picture(1), prompt_of(4)))
    driven.step_until(lambda: tower.num_done > 0)
    driven.worker.cancel("r")
    driven.finish()
    assert told.failed().kind == "cancelled"
    assert tower.num_done < tower.num_slices
    tower.num_slices = 3
    asked = looked_at(prompt_of(3), Picture(1), prompt_of(4), name="again", max_tokens=8)
    assert answer(driven, asked) == expected("mistral3", asked)


def test_every_slice_of_a_tower_counts_as_progress() -> None:
    loaded = make_seeing("mistral3")
    assert loaded.sight
    tower: Any = loaded.sight.tower
    tower.num_slices = 200
    driven = Driven(loaded, max_stall_ms=0)
    told = driven.ask(looked_at(prompt_of(5), name="text", max_tokens=60))
    driven.step_until(lambda: bool(told.text))
    seen = driven.ask(looked_at(prompt_of(3), Picture(1), prompt_of(4), max_tokens=4))
    driven.step_until(lambda: tower.num_done > 0)
    while tower.num_done < tower.num_slices:
        done, progressed = tower.num_done, driven.worker.num_progressed
        driven.worker.step()
        # As few as a prompt needs to advance, whatever the whole picture takes; and a token of the row.
        assert done < tower.num_done <= done + MIN_CHUNK_TOKENS
        assert driven.worker.num_progressed > progressed + 1
    driven.finish()
    assert len(seen.finished().tokens) == 4


def test_a_picture_that_two_prompts_have_is_looked_at_once() -> None:
    loaded = make_seeing("mistral3")
    assert loaded.sight
    driven = Driven(loaded)
    for number in range(2):
        asked = looked_at(prompt_of(9, number), Picture(5), prompt_of(4), name=str(number), max_tokens=8)
        assert answer(driven, asked) == expected("mistral3", asked)
    assert loaded.sight.num_looked == 1


def test_what_the_tower_has_to_look_at_counts_as_time_that_prompts_still_take() -> None:
    loaded = make_seeing("mistral3")
    assert loaded.sight
    tower: Any = loaded.sight.tower
    driven = Driven(loaded, prefill_chunk_tokens=1, prefix_cache_bytes=0)

    def left_s(name: str, seed: int) -> float:
        driven.ask(looked_at(prompt_of(9), Picture(seed), prompt_of(4), name=name))
        driven.step_until(lambda: bool(driven.worker.prefilling))
        found = driven.worker.queue.prefiller.planner.left_s(driven.worker.prefilling)
        driven.worker.cancel(name)
        driven.finish()
        return found

    driven.ask(looked_at(prompt_of(9), Picture(1), prompt_of(4)))
    driven.finish()
    tower.num_slices = 50_000
    # Of a picture that was seen, features are kept.
    assert left_s("unseen", 2) > 10 * left_s("seen", 1) > 0


def test_pictures_wait_for_the_memory_that_others_take() -> None:
    loaded = make_seeing("mistral3")
    assert loaded.sight
    tower: Any = loaded.sight.tower
    tower.forecast_bytes = lambda _: 2**28
    driven = Driven(loaded, memory_bytes=loaded.info.weight_bytes + 2**28 + 2**27, prefix_cache_bytes=0)
    asked = [two_pictures("mistral3", number) for number in range(3)]
    answers = [driven.ask(one) for one in asked]
    most = 0

    def is_over() -> bool:
        nonlocal most
        most = max(most, len(driven.worker.prefilling))
        assert driven.worker.queue.memory_budget.used_bytes <= 2**28 + 2**27
        return not driven.worker.has_work

    driven.step_until(is_over)
    assert most == 1
    assert [list(one.finished().tokens) for one in answers] == [expected("mistral3", one) for one in asked]
