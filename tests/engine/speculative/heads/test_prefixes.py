"""After a prefix from the cache a head drafts as well as if it had read the whole text."""

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.batch.sequence import Sequence
from reprise.engine.engine import Engine
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.model.loading import LoadedModel
from reprise.engine.speculative.heads import head_drafter
from reprise.engine.speculative.heads.head import Head
from reprise.engine.speculative.heads.head_drafter import MAX_FILLED, HeadPrefill, HeadPrefixes, NamedHead
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.speculative.heads.fakes import ReadingHead
from tests.engine.speculative.heads.test_drafting_by_heads import (
    INNER,
    finding,
    knowing,
    nothing_else,
    random_dflash,
    random_eagle,
    random_mtp,
    random_of_kind,
    start,
)
from tests.engine.support import ask, prompt_of, request

NAMES = ["llama", "gemma3_text", "qwen3_next", "lfm2"]


class WholeHead(ReadingHead):
    """A head that knows what to draft only if its caches hold the whole text from its second token on.

    num_zeros: positions that it was fed without their states.
    """

    num_zeros = 0

    def feed(self, states: mx.array, following: mx.array, caches: SequenceOf[Any]) -> None:
        super().feed(states, following, caches)
        fed = following != 0
        self.num_zeros += int((fed & (mx.abs(states).max(axis=-1) == 0)).sum().item())

    def _continue(self, text: tuple[int, ...], num: int) -> list[int]:
        end = len(text) + 1
        known = next((known for known in self._texts if known[1:end] == text), (1,) * (end + num))
        return [*known[end : end + num], *[1] * num][:num]


def whole(name: str, asked: SequenceOf[GenerationRequest]) -> WholeHead:
    return WholeHead({one.prompt: expected_tokens(name, one) for one in asked}, INNER.get(name, ()))


def turns(name: str) -> list[GenerationRequest]:
    """A prompt, the next turn, which continues its answer, and the prompt once more."""
    first = request(prompt_of(90), 30, name="first")
    following = [*first.prompt, *expected_tokens(name, first), *prompt_of(20, 5)]
    return [first, request(following, 30, name="second"), dataclasses.replace(first, id="again")]


def check(engine: Engine, name: str, asked: GenerationRequest, min_cached: int) -> None:
    """Ask, and check that the answer is right, that its prefix was cached, and that every draft was."""
    answer = ask(engine, asked).finished()
    assert list(answer.tokens) == expected_tokens(name, asked)
    assert answer.usage.num_cached_tokens >= min_cached
    assert answer.usage.drafting.num_accepted == answer.usage.drafting.num_drafted > 0


@pytest.mark.parametrize("name", NAMES)
def test_prompts_and_answers_are_known_to_the_head_in_the_next_turn(
    name: str, start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    asked = turns(name)
    head = whole(name, asked)
    engine = start(start_engine, name, finding(head))
    # A model with state can only continue where its state was kept.
    for one, min_cached in zip(asked, (0, 118, 88 if name == "llama" else 0), strict=True):
        check(engine, name, one, min_cached)
    # What follows the last token of an answer is not known when it is kept.
    assert head.num_zeros <= 1
    assert "without drafts" not in caplog.text
    assert "could not be cached" not in caplog.text


def test_keys_of_quantized_caches_are_found_too(start_engine: StartEngine) -> None:
    first = request(prompt_of(90), 30, name="first")
    plain = start_engine("llama", kv_bits=8, prefix_cache_bytes=0)
    answers = {one.prompt: list(ask(plain, one).finished().tokens) for one in [first]}
    head = WholeHead(answers)
    engine = start(start_engine, "llama", finding(head), kv_bits=8)
    for _ in range(2):
        answer = ask(engine, first).finished()
        assert list(answer.tokens) == answers[first.prompt]
        assert answer.usage.drafting.num_accepted == answer.usage.drafting.num_drafted > 0
    assert answer.usage.num_cached_tokens == 89
    assert head.num_zeros == 0


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_where_texts_part_one_state_is_not_known(name: str, start_engine: StartEngine) -> None:
    """The last token that two texts share is followed by two others, and its state was not kept."""
    opening = prompt_of(60)
    asked = [request([*opening, *prompt_of(30, i)], 20, name=str(i)) for i in range(3)]
    asked.append(
        request([*asked[-1].prompt, *expected_tokens(name, asked[-1]), *prompt_of(9)], 20, name="next turn")
    )
    head = whole(name, asked)
    engine = start(start_engine, name, finding(head))
    check(engine, name, asked[0], 0)
    # The second one finds out where they part; a model with state keeps it there for the next one.
    check(engine, name, asked[1], 60 if name == "llama" else 0)
    before = head.num_zeros
    check(engine, name, asked[2], 60)
    assert head.num_zeros == before + 1
    # What follows is at its own place, and is kept.
    check(engine, name, asked[3], 100)
    assert head.num_zeros == before + 1


def test_a_text_of_which_the_head_read_too_little_is_drafted_for_from_its_first_known_state(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeadPrefixes, "keep", lambda *_: None)
    monkeypatch.setattr(HeadPrefixes, "keep_row", lambda *_: None)
    first, second, _ = turns("llama")
    expected = {one.prompt: expected_tokens("llama", one) for one in (first, second)}
    head = ReadingHead(expected)
    engine = start(start_engine, "llama", finding(head))
    check(engine, "llama", first, 0)
    assert MAX_FILLED < 119
    check(engine, "llama", second, 119)


def test_rows_that_begin_alike_are_read_one_after_the_other() -> None:
    asked = [request(prompt_of(90), 40, name=str(i), temperature=0.8, seed=i) for i in range(3)]
    # The texts are alike up to the answers, so the head needs no more than to be asked.
    head = WholeHead({})
    driven = Driven(
        loaded_once("llama"), nothing_else, find_head=finding(head), draft_type="mtp", num_draft_tokens=4
    )
    answers = [driven.ask(one) for one in asked]
    driven.finish()
    for one, answer in zip(asked, answers, strict=True):
        assert list(answer.finished().tokens) == expected_tokens("llama", one)
    assert head.num_zeros == 0


NUM_CERTAIN = 230


def ask_and_read_ahead(
    name: str, make_head: Callable[[list[GenerationRequest]], ReadingHead], *, knows_all: bool = True
) -> ReadingHead:
    """Ask three prompts, the second of which was read ahead. knows_all: whether all drafts are accepted."""
    first = request(prompt_of(90), 30, name="first")
    # It parts from the first, as templates render it that leave thoughts out.
    certain = [*first.prompt[:80], *prompt_of(NUM_CERTAIN - 80, 3)]
    asked = [first, request([*certain, *prompt_of(20, 5)], 30, name="second")]
    following = [*asked[1].prompt, *expected_tokens(name, asked[1]), *prompt_of(9)]
    asked.append(request(following, 30, name="third"))
    head = make_head(asked)
    driven = Driven(
        loaded_once(name),
        nothing_else,
        find_head=finding(head),
        num_draft_tokens=4,
        prefill_chunk_tokens=16,
    )
    expected = request(certain, 1, name="expected")
    for one in asked:
        answer = driven.ask(one)
        driven.finish()
        end = answer.finished()
        assert list(end.tokens) == expected_tokens(name, one)
        if knows_all:
            assert end.usage.drafting.num_accepted == end.usage.drafting.num_drafted > 0
        assert (end.usage.num_read_ahead_tokens > 0) == (one is asked[1])
        if one is first:
            sequence = Sequence.of(expected, lambda _: None, driven.loaded.tokenizer, driven.grammars)
            driven.worker.read_ahead.expect([sequence])
            # It is interrupted once.
            driven.worker.read_next()
            driven.worker.stop_reading()
            while driven.worker.read_next():
                pass
            driven.worker.stop_reading()
    return head


@pytest.mark.parametrize("name", NAMES)
def test_a_head_reads_ahead_too(name: str, caplog: pytest.LogCaptureFixture) -> None:
    ask_and_read_ahead(name, partial(whole, name))
    assert not caplog.records


def test_a_head_that_keeps_the_last_positions_only_reads_no_more_than_it_keeps() -> None:
    head = ask_and_read_ahead("llama", partial(knowing, "llama", bounds=(4, 24)))
    assert head.longest <= 4 + 2 * 24 + 4


def test_a_head_that_fails_to_read_ahead_changes_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = HeadPrefill.compute

    def failing(prefill: HeadPrefill, model: object, tokens: SequenceOf[int], max_ids: int) -> int:
        if len(tokens) == NUM_CERTAIN:
            raise RuntimeError("out of memory")
        return compute(prefill, model, tokens, max_ids)

    monkeypatch.setattr(HeadPrefill, "compute", failing)
    ask_and_read_ahead("llama", partial(knowing, "llama"), knows_all=False)
    assert [line.getMessage() for line in caplog.records] == 2 * ["a head cannot read ahead"]


def saved(folder: Path) -> dict[str, Any]:
    return {"prefix_cache_dir": str(folder), "prefix_cache_dir_bytes": 2**30}


def test_files_keep_it_over_restarts_with_and_without_the_head(
    start_engine: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = request(prompt_of(400), 30, name="first")
    asked = [first, request([*first.prompt, *expected_tokens("llama", first), *prompt_of(9)], 30, name="2")]
    head = whole("llama", asked)
    engine = start(start_engine, "llama", finding(head), **saved(tmp_path))
    check(engine, "llama", first, 0)
    engine.stop(0.0)
    num_files = len(list(tmp_path.iterdir()))
    assert num_files >= 2

    without = start_engine("llama", **saved(tmp_path))
    answer = ask(without, asked[1]).finished()
    assert list(answer.tokens) == expected_tokens("llama", asked[1])
    assert answer.usage.num_cached_tokens >= 399
    without.stop(0.0)

    engine = start(start_engine, "llama", finding(head), **saved(tmp_path))
    check(engine, "llama", dataclasses.replace(first, id="again"), 399)
    assert head.num_zeros == 0
    engine.stop(0.0)

    for is_changed in (True, False):
        other = WholeHead({one.prompt: expected_tokens("llama", one) for one in asked})
        if is_changed:
            other.parameters = lambda: {"weight": mx.ones(4)}  # type: ignore[method-assign]
        else:
            # The same weights, but what is kept was computed in another way.
            monkeypatch.setattr(head_drafter, "KEPT_VERSION", head_drafter.KEPT_VERSION - 1)
        engine = start(start_engine, "llama", finding(other), **saved(tmp_path))
        assert list(ask(engine, first).finished().tokens) == expected_tokens("llama", first)
        assert other.num_zeros == 1
        engine.stop(0.0)


def test_what_a_head_keeps_stays_within_its_share_of_the_prefix_cache(start_engine: StartEngine) -> None:
    asked = [request(prompt_of(200, i), 12, name=str(i)) for i in range(6)]
    head = whole("llama", asked)
    engine = start(start_engine, "llama", finding(head), prefix_cache_bytes=2**20)
    for one in asked:
        check(engine, "llama", one, 0)
    status = engine.prefix_status()
    assert status["draft"]["num_bytes"] <= status["draft"]["budget_bytes"]
    assert status["draft"]["evictions"] > 0
    assert sum(one["budget_bytes"] for one in status.values()) <= 2**20


HEADS = {
    "llama, MTP": ("llama", random_mtp("llama")),
    "llama, DFlash": ("llama", random_dflash(None)),
    "llama, DFlash with windows": ("llama", random_dflash(None, 12)),
    "deepseek v3, MTP": ("deepseek_v3", random_mtp("deepseek_v3")),
    "deepseek v3.2, MTP": ("deepseek_v32", random_mtp("deepseek_v32")),
    "llama, EAGLE-3": ("llama", random_eagle()),
    "llama, EAGLE-3 with a window": (
        "llama",
        random_eagle(layer_types=["sliding_attention"], sliding_window=12),
    ),
    "llama, DSpark": ("llama", random_of_kind("DSpark")),
    "llama, Muse Glimmer": ("llama", random_of_kind("Muse Glimmer")),
}


Drafts = dict[tuple[int, int], list[int]]
"""What a head drafted for a single row, by the positions in its caches and the number of tokens."""


def record_drafts(head: Head, made: list[Drafts], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note in the last of made what the head drafts."""
    draft = type(head).draft

    def tapped(head: Head, states: mx.array, last: mx.array, caches: Caches, *rest: Any) -> mx.array:
        held = int(mx.array(caches[0].offset).item())
        ids = draft(head, states, last, caches, *rest)
        made[-1][held, ids.shape[1]] = ids[0].tolist()  # type: ignore[assignment]
        return ids

    monkeypatch.setattr(type(head), "draft", tapped)


@pytest.mark.parametrize("case", HEADS)
def test_after_a_hit_a_head_drafts_what_it_drafts_without(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, find = HEADS[case]
    asked = request(prompt_of(150), 60)
    made: list[Drafts] = []

    def find_recorded(loaded: LoadedModel) -> NamedHead:
        found = find(loaded)
        record_drafts(found.head, made, monkeypatch)
        return found

    driven = Driven(
        dataclasses.replace(loaded_once(name)),
        nothing_else,
        find_head=find_recorded,
        num_draft_tokens=4,
        prefill_chunk_tokens=16,
    )
    for num_cached in (0, 149):
        made.append({})
        answer = driven.ask(asked)
        driven.finish()
        end = answer.finished()
        assert list(end.tokens) == expected_tokens(name, asked)
        assert end.usage.num_cached_tokens == num_cached
    cold, after_hit = made
    both = cold.keys() & after_hit.keys()
    assert len(both) > 5
    assert [cold[at] for at in both] == [after_hit[at] for at in both]
