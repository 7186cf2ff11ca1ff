"""Sessions and their forks start from state that the first of them left; no token changes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from threading import Event
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.prefix_cache import disk
from reprise.engine.scheduler.prefixes import MAX_GAP_TOKENS, NUM_RUNGS, choose_rungs
from reprise.engine.speculative.proposers import DraftSources
from tests.combinations import FAMILIES, every_kind_of_cache
from tests.drafters.fakes import Coin, scored
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.support import make_tokenizer, prompt_of, request

WITH_STATE = [
    "gemma3_text", "lfm2", "gpt_oss", "qwen3_next", "mamba2", "falcon_h1", "bailing_hybrid", "llama4",
    "baichuan_m1",
]  # fmt: skip
OTHERS = [
    name for name in (*FAMILIES, "mamba") if name not in WITH_STATE
    and name.startswith(("gemma", "qwen3_5", "ministral3", "granite", "nemotron", "mamba"))
]  # fmt: skip
OPENINGS = make_tokenizer().openings
HEAD = prompt_of(200)


def message(length: int, start: int, of_user: bool = True) -> list[int]:
    """Make a message as the bundled model's template begins it."""
    return [*(OPENINGS.user if of_user else OPENINGS.answer), *prompt_of(length, start)]


def session(
    *parts: Sequence[int], name: str = "r", max_tokens: int = 6, **sampling: Any
) -> GenerationRequest:
    """Make a request that begins with HEAD, and ends where the answer opens."""
    opened = [*OPENINGS.answer, 70]
    prompt = [*HEAD, *(token for part in parts for token in part), *opened]
    return replace(request(prompt, max_tokens, name=name, **sampling), head_tokens=len(HEAD))


def shared(one: GenerationRequest, other: GenerationRequest) -> int:
    pairs = zip(one.prompt, other.prompt, strict=False)
    return next(at for at, (a, b) in enumerate(pairs) if a != b)


class Session(Driven):
    """An engine of which every answer is compared with the plain loop's. name: of the model."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(replace(loaded_once(name)), **{"prefix_cache_bytes": 2**26} | settings)
        self.name, self.count = name, 0

    def cached(self, *asked: GenerationRequest) -> list[int]:
        """Answer requests at once; return how many tokens of each one's prompt were cached."""
        answers = []
        for one in asked:
            self.count += 1
            answers.append(self.ask(replace(one, id=f"{one.id} {self.count}")))
        self.finish()
        ends = [answer.finished() for answer in answers]
        for one, end in zip(asked, ends, strict=True):
            assert list(end.tokens) == expected_tokens(self.name, replace(one, id="r"))
        return [end.usage.num_cached_tokens for end in ends]


@given(
    start=st.integers(0, 3000),
    length=st.integers(0, 40_000),
    borders=st.sets(st.integers(0, 40_000), max_size=40),
    fixed=st.sets(st.integers(0, 40_000), max_size=3),
)
def test_a_prompt_that_parts_near_the_end_finds_a_length_within_the_gap(
    start: int, length: int, borders: set[int], fixed: set[int]
) -> None:
    end = start + length
    inside = sorted(at for at in fixed if start < at < end)
    rungs = choose_rungs(inside, sorted(borders), start, end)
    assert rungs == sorted(set(rungs))
    for at, following in pairwise([start, *rungs, end]):
        assert 0 < following - at <= max(MAX_GAP_TOKENS, (end - at) // NUM_RUNGS) or not length
    # Two gaps together are never shorter than one may be, but for the lengths that are kept in any case.
    assert len(rungs) <= 2 * length // MAX_GAP_TOKENS + len(inside)


def check_goals(name: str) -> None:
    engine = Session(name)
    first, second = session(message(40, 1)), session(message(40, 2))
    assert engine.cached(first) == [0]
    (cached,) = engine.cached(second)
    assert 0.95 * shared(first, second) <= cached <= shared(first, second)
    assert engine.cached(first) == [len(first.prompt) - 1]
    completion = request(prompt_of(90, 7), 6)
    assert engine.cached(completion) == [0]
    assert engine.cached(completion) == [len(completion.prompt) - 1]


def check_an_edit(name: str) -> None:
    engine = Session(name)
    turns = [message(20 + 25 * (at % 2), at, at % 2 == 0) for at in range(60)]
    whole = session(*turns, message(9, 99), max_tokens=2)
    edited = session(*turns[:30], message(20, 100), max_tokens=2)
    engine.ask(whole)
    engine.finish()
    (cached,) = engine.cached(edited)
    assert shared(whole, edited) - MAX_GAP_TOKENS <= cached <= shared(whole, edited)
    assert cached > len(HEAD)


@pytest.mark.parametrize("name", every_kind_of_cache(WITH_STATE, 1, of=4))
def test_sessions_share_their_head_and_a_prompt_again_lacks_one_token(name: str) -> None:
    check_goals(name)


@pytest.mark.parametrize("name", every_kind_of_cache(WITH_STATE, 1, of=9))
def test_an_edit_of_a_long_history_starts_near_the_edit(name: str) -> None:
    check_an_edit(name)


@pytest.mark.slow
def test_any_edit_of_a_very_long_history_starts_near_it_where_state_is_small() -> None:
    """Part from 30,000 tokens within one of the first messages."""
    engine = Driven(loaded_once("mamba2"), prefix_cache_bytes=2**26, draft_type="none")
    turns = [message(400, at, at % 2 == 0) for at in range(74)]
    whole = session(*turns, max_tokens=1)
    engine.ask(replace(whole, id="whole"))
    engine.finish()
    for at in range(12, 4, -1):
        edited = session(*turns[:at], turns[at][:390], message(20, 100), max_tokens=1)
        answer = engine.ask(replace(edited, id=f"{at}"))
        engine.finish()
        assert 0 <= shared(whole, edited) - answer.finished().usage.num_cached_tokens <= MAX_GAP_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_family_with_state_keeps_it_where_prompts_part(name: str) -> None:
    check_goals(name)
    check_an_edit(name)


class Counting:
    """A model that counts the tokens of forward passes, in widths those of wide ones."""

    def __init__(self, model: Any) -> None:
        self.model, self.widths, self.all = model, list[int](), list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.all.append(tokens.shape[0] * tokens.shape[1])
        if tokens.shape[1] > 8:
            self.widths.append(tokens.shape[0] * tokens.shape[1])
        logits: mx.array = self.model(tokens, cache=cache)
        return logits


@pytest.mark.parametrize("cancels", [False, True], ids=["", "the first is cancelled"])
@pytest.mark.parametrize("name", ["llama", *every_kind_of_cache(WITH_STATE[:4], 3, of=4)])
def test_eight_sub_agents_compute_their_head_once(name: str, cancels: bool) -> None:
    """Start them at once, with right and wrong drafts, and cancel the first in the middle of the head."""
    asked = [
        session(message(20 + at, at), name=f"{at}", seed=at, temperature=0.8 * (at % 2)) for at in range(8)
    ]
    known = {one.prompt: expected_tokens(name, replace(one, id="r")) for one in asked}
    drafter = Coin(known, 0.7, num_ids=4096, name="suffix")
    loaded = loaded_once(name)
    model = Counting(loaded.model)
    engine = Driven(
        replace(loaded, model=model),
        lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        max_rows=16, draft_type="suffix", gate="off", num_draft_tokens=5, prefix_cache_bytes=2**26,
        prefill_chunk_tokens=64,
    )  # fmt: skip
    model.widths.clear()
    answers = [engine.ask(one) for one in asked]
    engine.worker.step()
    if cancels:
        engine.worker.step()
        assert 0 < engine.worker.prefilling[0].prefill.num_computed < len(HEAD)
        engine.worker.cancel("0")
    engine.finish()
    ends = [answer.finished() for answer in answers[cancels:]]
    for one, end in zip(asked[cancels:], ends, strict=True):
        assert list(end.tokens) == known[one.prompt]
    # The first one after a cancelled one may have to compute a part of the head.
    assert sum(model.widths) <= len(HEAD) + sum(len(one.prompt) - len(HEAD) for one in asked)
    assert min(end.usage.num_cached_tokens for end in ends[1:]) >= len(HEAD)


@pytest.mark.parametrize("name", ["lfm2", "gemma3_text"])
def test_a_restart_finds_the_head_and_the_whole_prompt_in_files(name: str, tmp_path: Any) -> None:
    first, second = (session(message(200, at)) for at in (1, 2))
    before = Session(name, prefix_cache_dir=str(tmp_path))
    before.cached(first)
    before.worker.queue.prefixes.close()
    after = Session(name, prefix_cache_dir=str(tmp_path))
    assert after.cached(second) == [len(HEAD)]
    assert after.cached(first) == [len(first.prompt) - 1]
    after.worker.queue.prefixes.close()


@pytest.mark.parametrize("name", ["llama", "lfm2", "gemma3_text"])
def test_the_first_prompt_is_written_though_nothing_else_may_be(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MIN_SAVED_TOKENS", 64)
    monkeypatch.setattr(disk, "HOURLY_REST_BYTES", 0)
    monkeypatch.setattr(disk, "WRITES", disk.HourOfWrites())
    before = Session(name, prefix_cache_dir=str(tmp_path))
    before.cached(session(message(400, 1)))
    before.worker.queue.prefixes.close()
    after = Session(name, prefix_cache_dir=str(tmp_path))
    assert after.cached(session(message(400, 1), message(9, 3))) == [len(HEAD)]
    after.worker.queue.prefixes.close()


@pytest.mark.parametrize("name", ["llama", "lfm2", "gemma3_text"])
def test_a_first_prompt_of_which_a_part_was_written_is_completed_before_longer_text(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MIN_SAVED_TOKENS", 64)
    monkeypatch.setattr(disk, "FILE_TOKENS", 64)
    monkeypatch.setattr(disk, "MAX_UNWRITTEN_BYTES", 1)
    before = Session(name, prefix_cache_dir=str(tmp_path))
    store = before.worker.queue.prefixes.store
    assert store is not None
    lengths, may_write, write = [], Event(), disk._write

    def wait_and_write(*given: Any) -> int:
        may_write.wait()
        return write(*given)

    monkeypatch.setattr(disk, "_write", wait_and_write)
    for turn in range(4):
        may_write.clear()
        before.cached(session(message(200, turn)))
        may_write.set()
        store._thread.submit(int).result()
        store._catch_up()
        lengths.append(max(file.end for file in store._index.files.values()))
    assert lengths[:3] == [64, 128, 200]
    before.worker.queue.prefixes.close()
    after = Session(name, prefix_cache_dir=str(tmp_path))
    assert after.cached(session(message(200, 9))) >= [len(HEAD)]
    after.worker.queue.prefixes.close()


def test_with_the_default_folder_out_of_reach_an_engine_serves_from_memory(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "reprise").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = Session("llama", is_server=True)
    assert engine.cached(session(message(300, 1))) == [0]
    assert engine.cached(session(message(300, 2))) >= [len(HEAD)]
    engine.worker.queue.prefixes.close()
    assert "prompts are kept in memory only" in caplog.text


@pytest.mark.parametrize("name", every_kind_of_cache(WITH_STATE, 2, of=9))
def test_state_is_kept_in_the_same_pass_with_few_cuts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what a prompt computes that nothing is shared with, with a cache and without."""
    # No chunk is smaller because the machine is slow.
    monkeypatch.setattr("reprise.engine.memory.prefill_plan.ALONE_S", 1e9)
    loaded = loaded_once(name)
    asked = session(*(message(70, at, at % 2 == 0) for at in range(20)), max_tokens=1)
    counts = []
    for num_bytes in (0, 2**26):
        model = Counting(loaded.model)
        engine = Driven(
            replace(loaded, model=model),
            prefix_cache_bytes=num_bytes, prefill_chunk_tokens=512, draft_type="none",
        )  # fmt: skip
        model.all.clear()
        engine.ask(asked)
        engine.finish()
        counts.append(model.all)
    plain, keeping = counts
    # One token is decoded after the prompt, or two, as the next step begins before this one is read.
    assert len(asked.prompt) <= sum(keeping) == sum(plain) <= len(asked.prompt) + 1
    # The head's end, where the answer opens, and the ladder.
    assert len(keeping) - len(plain) <= 2 + len(asked.prompt) // MAX_GAP_TOKENS


def test_a_prompt_is_cut_for_later_ones_only_as_far_as_its_time_allows() -> None:
    """Let a forward pass of one token take as long as many tokens of a prompt, as on a GPU."""
    loaded = loaded_once("lfm2")
    counts = []
    for plain_s in (0.001, 1000.0):
        model = Counting(loaded.model)
        engine = Driven(replace(loaded, model=model), prefix_cache_bytes=2**26)
        prefiller = engine.worker.queue.prefiller
        prefiller.device.note_plain(0.001)
        engine.ask(request(prompt_of(64, 5), 1, name="learn"))
        engine.finish()
        for _ in range(9):
            prefiller.device.note_plain(plain_s)
        model.widths.clear()
        turns = [message(100, at, at % 2 == 0) for at in range(40)]
        engine.ask(session(*turns, max_tokens=1))
        engine.finish()
        counts.append(len(model.widths))
    # One cut is free, as the opening of the answer is not cut off.
    assert counts[1] <= counts[0]
    assert counts[1] <= 4


@pytest.mark.parametrize("name", every_kind_of_cache(["qwen3_next", "gemma3_text"]))
def test_little_memory_keeps_the_head_longest(name: str) -> None:
    """Give memory for few states: those that save most tokens per byte stay."""
    probe = Session(name)
    probe.cached(session(message(20, 0)))
    cache = probe.worker.queue.prefixes.cache
    assert cache
    engine = Session(name, prefix_cache_bytes=2 * cache.num_bytes)
    for start in range(9):
        engine.cached(session(message(20, start)))
    (cached,) = engine.cached(session(message(20, 50)))
    assert cached >= len(HEAD)
    status = engine.worker.queue.prefixes.status()
    assert status
    assert status.num_bytes <= status.budget_bytes
    assert status.evictions > 0
