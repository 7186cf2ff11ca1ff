"""Drafters read prompts and learn texts in slices between steps, and only for requests that may draft."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, Slices
from reprise.drafters.copies import copying, history
from reprise.drafters.ngram_mod import drafter as ngram_mod
from reprise.drafters.repetition import score_in_slices
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice, GenerationRequest
from reprise.engine.speculative.draft_length import MAX_CLOSING, STEP_SLICES, DrafterWork
from reprise.engine.speculative.proposers import DraftSources, Proposers, find_table, reset
from tests.drafters.fakes import scored
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.support import prompt_of, request


def slices(log: list[str], name: str, count: int) -> Slices:
    for _ in range(count):
        log.append(name)
        yield 1


class Reader:
    """A drafter that reads and learns one token per slice, drafts nothing, and logs its calls."""

    name = "suffix"

    def __init__(self) -> None:
        self.log: list[str] = []

    def open(self, start: SequenceStart) -> Slices:
        self.log.append("open")
        return slices(self.log, f"read {start.prompt[0]}", len(start.prompt))

    def propose(self, _: DraftQuery) -> Draft:
        self.log.append("propose")
        return NO_DRAFT

    def observe(self, _seq: int, _tokens: Sequence[int]) -> None:
        self.log.append("observe")

    def note_verified(self, _seq: int, _num_verified: int, _num_accepted: int) -> None:
        pass

    def close(self, _seq: int) -> Slices:
        self.log.append("close")
        return slices(self.log, "learn", 5)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step do one slice."""
    monkeypatch.setattr("reprise.engine.speculative.proposers.DrafterWork", lambda: DrafterWork(1, 0.0))


Score = Callable[[Sequence[int]], Generator[int, None, float]]


def drive(reader: Reader, score: Score, **kwargs: Any) -> Driven:
    return Driven(loaded_once("llama"), lambda _: DraftSources({"suffix": reader}, score), **kwargs)


def test_prompts_take_turns_and_texts_are_learned_one_after_the_other() -> None:
    log: list[str] = []
    work = DrafterWork(2, 0.0)
    work.index(1, slices(log, "long", 4))
    work.index(2, slices(log, "short", 1))
    work.close(3, slices(log, "first", 2))
    work.close(4, slices(log, "second", 1))
    while work.is_left:
        work.advance()
    assert [name for name in log if name in ("long", "short")] == ["long", "short", "long", "long", "long"]
    assert [name for name in log if name in ("first", "second")] == ["first", "first", "second"]


def test_a_step_does_its_slices_of_prompts_and_of_texts_in_turn() -> None:
    log: list[str] = []
    work = DrafterWork()
    work.index(1, slices(log, "read", 10))
    work.close(2, slices(log, "learn", 10))
    for num_steps in range(1, 6):
        work.advance()
        assert len(log) == num_steps * STEP_SLICES
    assert log == ["read", "learn"] * 10


@pytest.mark.parametrize(("plain_s", "num_slices"), [(0.0, 4), (0.003, 4), (0.05, 50), (0.2, 200)])
def test_beside_long_steps_more_is_read_as_the_device_is_busy_for_longer(
    plain_s: float, num_slices: int
) -> None:
    log: list[str] = []
    work = DrafterWork()
    work.index(1, slices(log, "read", 1000))
    work.advance(plain_s)
    assert len(log) == num_slices


def test_a_reset_frees_memory_in_the_steps_to_come() -> None:
    sources = DraftSources(make_drafters(Settings(), "v"), score_in_slices)
    proposers = Proposers(sources, Settings())
    drafts = proposers.begin(request(prompt_of(200), 4))
    proposers.work.finish()
    table = find_table(sources)
    assert table.status()["occupied"] > 0
    reset(proposers)
    assert (table.status()["occupied"], table.status()["bytes"]) == (0, 0)
    for _ in range(4):
        assert proposers.work.is_left
        proposers.work.advance()
    proposers.work.finish()
    drafts.close()


def test_a_closed_sequence_is_not_read_further() -> None:
    log: list[str] = []
    work = DrafterWork(1, 0.0)
    work.index(1, slices(log, "read", 10))
    work.advance()
    work.close(1, slices(log, "learn", 1))
    work.finish()
    assert log == ["read", "learn"]


def test_the_texts_that_wait_to_be_learned_are_bounded() -> None:
    log: list[str] = []
    work = DrafterWork(2, 0.0)
    for seq in range(MAX_CLOSING + 3):
        work.close(seq, slices(log, str(seq), 1))
    work.finish()
    assert log == [str(seq) for seq in range(3, MAX_CLOSING + 3)]


@pytest.mark.usefixtures("slow")
def test_a_prompt_is_read_while_it_prefills_a_slice_per_step() -> None:
    reader = Reader()
    driven = drive(reader, scored(1.0), prefill_chunk_tokens=16, draft_type="suffix")
    driven.ask(request(prompt_of(160), 4))
    for num_steps in range(1, 8):
        driven.worker.step()
        assert reader.log == ["open", *["read 5"] * num_steps]
    driven.finish()
    assert reader.log.index("propose") > 9


@pytest.mark.usefixtures("slow")
def test_a_text_is_learned_after_its_terminal_event_also_if_no_other_request_comes() -> None:
    reader = Reader()
    driven = drive(reader, scored(1.0), draft_type="suffix")
    answer = driven.ask(request(prompt_of(3), 4))
    driven.step_until(lambda: any(event.is_terminal for event in answer.events))
    assert "learn" not in reader.log[:-1]
    driven.finish()
    assert reader.log.count("learn") == 5


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("num_steps", [1, 3, 6, 12])
def test_a_request_cancelled_while_its_prompt_is_read_is_read_no_further(num_steps: int) -> None:
    reader = Reader()
    driven = drive(reader, scored(1.0), prefill_chunk_tokens=16, draft_type="suffix")
    answer = driven.ask(request(prompt_of(160), 50))
    for _ in range(num_steps):
        driven.worker.step()
    driven.worker.cancel("r")
    num_read = reader.log.count("read 5")
    driven.finish()
    assert answer.failed().kind == "cancelled"
    assert reader.log.count("read 5") == num_read
    assert (reader.log.count("close"), reader.log.count("learn")) == (1, 5)


@pytest.mark.parametrize("choice", [DraftChoice("none"), DraftChoice(max_tokens=0), DraftChoice("suffix", 0)])
def test_a_request_that_may_not_draft_costs_nothing(choice: DraftChoice) -> None:
    def count(_: Sequence[int]) -> Generator[int, None, float]:
        raise AssertionError("the prompt was scored")

    reader = Reader()
    driven = drive(reader, count)
    answer = driven.ask(replace(request(prompt_of(30), 4), draft=choice))
    driven.finish()
    assert isinstance(answer.finished(), Finished)
    assert reader.log == []


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("gate", "score"), [("auto", 0.5), ("auto", 0.0), ("on", 0.5), ("on", 0.0)])
def test_the_gate_decides_when_the_score_is_known(gate: str, score: float) -> None:
    def work(_: Sequence[int]) -> Generator[int, None, float]:
        for _ in range(6):
            reader.log.append("score")
            yield 1
        return score

    reader = Reader()
    driven = drive(reader, work, gate=gate)
    answer = driven.ask(request(prompt_of(3), 20))
    driven.finish()
    scored_at = max(at for at, call in enumerate(reader.log) if call == "score")
    # With the gate on, nothing is drafted unless the prompt is known to repeat itself.
    assert ("propose" in reader.log[:scored_at]) is (gate == "auto")
    assert ("propose" in reader.log[scored_at:]) is (gate == "auto" or score > 0)
    # What may not be drafted from is not read either.
    assert ("read 5" in reader.log) is (gate == "auto" or score > 0)
    report = answer.finished().usage.drafting
    assert report.gate_score == score
    assert report.gate_decision == ("lookup" if score else "plain")


@pytest.mark.usefixtures("slow")
def test_a_drafter_that_fails_in_a_slice_ends_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Reader):
        def open(self, _: SequenceStart) -> Slices:
            return self.fail_after(2)

        def close(self, seq: int) -> Slices:
            super().close(seq)
            return self.fail_after(1)

        def fail_after(self, count: int) -> Iterator[int]:
            yield from slices(self.log, "slice", count)
            raise RuntimeError("a fault in a drafter")

    reader = Failing()
    driven = drive(reader, scored(1.0), draft_type="suffix")
    asked = request(prompt_of(40), 12)
    answer = driven.ask(asked)
    driven.finish()
    assert list(answer.finished().tokens) == expected_tokens("llama", asked)
    assert reader.log.count("close") == 1
    assert "a fault in a drafter" in caplog.text


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copying, history, ngram_mod):
        monkeypatch.setattr(module, "SLICE_TOKENS", 7)


def periodic(name: str, num_tokens: int = 40) -> GenerationRequest:
    return request(prompt_of(24) * 8, num_tokens, name=name)


@pytest.mark.usefixtures("slow", "short_slices")
@pytest.mark.parametrize("draft_type", ["auto", "suffix", "ngram-mod", "ngram-simple"])
def test_answers_are_the_same_while_their_prompts_are_still_read(draft_type: str) -> None:
    settings = Settings(draft_type=draft_type)
    driven = Driven(
        loaded_once("llama"),
        lambda name: DraftSources(make_drafters(settings, name), score_in_slices),
        draft_type=draft_type,
        prefill_chunk_tokens=64,
    )
    # The second prompt is cached, so it takes no prefill and is read while it is answered.
    for name in ("cold", "cached"):
        answer = driven.ask(periodic(name))
        driven.finish()
        finished = answer.finished()
        assert list(finished.tokens) == expected_tokens("llama", periodic("r"))
    # The second answer is drafted from the first.
    assert (finished.usage.drafting.num_accepted > 0) is (draft_type != "ngram-simple")
    together = [driven.ask(periodic(str(at), 10 + 7 * at)) for at in range(4)]
    driven.step_until(lambda: len(driven.worker.members) == 4)
    driven.worker.cancel("3")
    driven.finish()
    for at, answer in enumerate(together[:3]):
        assert list(answer.finished().tokens) == expected_tokens("llama", periodic("r", 10 + 7 * at))


@pytest.mark.usefixtures("slow", "short_slices")
def test_the_table_holds_what_it_would_hold_if_texts_were_learned_at_once() -> None:
    settings = Settings(draft_type="ngram-mod", ngram_table_entries=5000, ngram_mod_size=3)
    drafters = make_drafters(settings, "v")
    driven = Driven(
        loaded_once("llama"), lambda _: DraftSources(drafters, score_in_slices), draft_type="ngram-mod"
    )
    table: Any = make_drafters(settings, "v")["ngram-mod"]
    for at in range(3):
        asked = request(prompt_of(60, at), 12, name=str(at))
        answer = driven.ask(asked)
        driven.finish()
        text = [*asked.prompt, *answer.finished().tokens]
        table.tables.table("").learn(text)
    found: Any = drafters["ngram-mod"]
    assert found.tables.table("").contents()[0].tolist() == table.tables.table("").contents()[0].tolist()
    assert found.tables.table("").contents()[1].tolist() == table.tables.table("").contents()[1].tolist()
