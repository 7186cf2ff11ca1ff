"""Rows join and decode at once; the draft model reads their texts beside them, within slowdown budgets."""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.batch.batch import Device
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice, GenerationRequest
from reprise.engine.memory import prefill_plan
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.model.loading import LoadedModel
from reprise.engine.scheduler import draft_prefiller
from reprise.engine.scheduler.draft_prefiller import Pace
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS
from reprise.engine.speculative.draft_model.draft_prefill import DraftPrefill
from reprise.engine.speculative.draft_model.forecast import DraftForecast
from reprise.engine.speculative.draft_stats import TOO_LONG
from reprise.engine.speculative.proposers import DraftSources
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.speculative.translation.test_draft_translation import make_foreign
from tests.engine.support import make_tokenizer, request

DRAFTS = ["llama", "gemma3_text", "mamba2"]
"""Architectures whose caches are plain, have windows, and are recurrent."""

VOCABULARIES = pytest.mark.parametrize("is_foreign", [False, True], ids=["one vocabulary", "two"])


@functools.cache
def text_of(length: int, start: int = 0) -> list[int]:
    """Make a prompt of that length from words, which any vocabulary can express."""
    rng = random.Random(start)
    words = ["lantern", "bridge", "the", "of", "seven", "river", "a", "quietly", "map", "turns", "it"]
    return make_tokenizer().encode(" ".join(rng.choice(words) for _ in range(2 * length)))[:length]


def expected(asked: GenerationRequest, name: str = "llama") -> list[int]:
    return expected_tokens(name, replace(asked, id="r"))


class Counted:
    """A model that counts its calls, and the tokens that it is fed for one row alone.

    clock: grows by token_s for each token. is_broken: whether the next call raises.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.num_calls = self.num_fed = 0
        self.clock = self.token_s = 0.0
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("a fault of the device")
        self.num_calls += 1
        self.num_fed += tokens.size if len(tokens) == 1 else 0
        self.clock += self.token_s * tokens.size
        logits: mx.array = self.model(tokens, cache=cache)
        return logits


class Pair(Driven):
    """A worker with a target model and a draft model, if any, to be stepped by hand."""

    def __init__(self, draft: LoadedModel | None = None, name: str = "llama", **settings: Any) -> None:
        self.name, loaded = name, loaded_once(name)
        self.target, self.draft = Counted(loaded.model), Counted(draft.model if draft else None)
        given: dict[str, Any] = {"num_draft_tokens": 4, "draft_type": "none"}
        if draft:
            given |= {"draft_type": "draft-model", "draft_model": "the one that is given"}
        super().__init__(
            replace(loaded, model=self.target),
            lambda _: DraftSources({}, lambda _: 0.0),
            replace(draft, model=self.draft) if draft else None,
            **given | settings,
        )

    def prefills(self) -> Sequence[DraftPrefill]:
        """Return the prefills of the rows whose text is still to be read."""
        model = self.worker.batch.draft_model
        return [prefill for _, prefill in model.awaiting_prefill()] if model else []

    def is_read(self, name: str) -> bool:
        """Whether the draft model may draft for a request."""
        return any(s.request.id == name and s.drafts and s.drafts.can_ask_model for s in self.worker.members)

    def count_to_first_token(self, asked: GenerationRequest) -> tuple[int, int]:
        """Ask; return the steps until the first token and the target's calls. Nothing may be read before."""
        num_calls, num_fed, num_steps = self.target.num_calls, self.draft.num_fed, 0
        self.ask(asked)
        sequence = self.worker.live[-1]
        while not sequence.num_answered:
            assert self.draft.num_fed == num_fed
            self.worker.step()
            num_steps += 1
        return num_steps, self.target.num_calls - num_calls

    def count_to_drafts(self, asked: GenerationRequest) -> int:
        """Ask, and step until the draft model has read the text; return how many tokens it was fed."""
        num_fed = self.draft.num_fed
        self.ask(asked)
        self.step_until(lambda: self.is_read(asked.id))
        return self.draft.num_fed - num_fed

    def finish_with(self, *asked: GenerationRequest) -> list[bool]:
        """Finish; check the answers, and return for each whether there were drafts."""
        self.finish()
        finished = [self.answers[one.id].finished() for one in asked]
        assert [list(one.tokens) for one in finished] == [expected(one, self.name) for one in asked]
        return [one.usage.drafting.num_drafted > 0 for one in finished]


def make_draft(name: str, is_foreign: bool) -> LoadedModel:
    return make_foreign(name) if is_foreign else loaded_once(name)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take what the flat costs say, no chunk is cut, and a random model drafts again and again."""
    monkeypatch.setattr(prefill_plan, "ALONE_S", 1000.0)
    monkeypatch.setattr(Device, "lap", lambda *_: None)
    monkeypatch.setattr(DraftForecast, "rate", 0.9)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pair, float], None]:
    """Let the draft model take so many seconds for each token, by a simulated clock. A plain step takes 1."""

    def begin(pair: Pair, token_s: float) -> None:
        pair.draft.token_s = token_s
        monkeypatch.setattr(draft_prefiller, "perf_counter", lambda: pair.draft.clock)

    return begin


@VOCABULARIES
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_first_token_comes_as_early_as_without_a_draft_model(draft: str, is_foreign: bool) -> None:
    pair, plain = Pair(make_draft(draft, is_foreign), prefill_chunk_tokens=64), Pair(prefill_chunk_tokens=64)
    for name in ("cold", "cached"):
        asked = request(text_of(150), 20, name=name, temperature=0.8)
        assert pair.count_to_first_token(asked) == plain.count_to_first_token(asked)
        assert pair.finish_with(asked) == [True]
        assert plain.finish_with(asked) == [False]


def test_a_cached_prompt_joins_in_its_first_step() -> None:
    pair = Pair(loaded_once("llama"))
    asked = request(text_of(150))
    pair.ask(asked)
    pair.finish_with(asked)
    pair.ask(asked)
    pair.worker.step()
    assert [s.request.id for s in pair.worker.members] == ["r"]


def test_nothing_is_read_while_a_prompt_is_prefilled() -> None:
    pair = Pair(loaded_once("llama"), prefill_chunk_tokens=16)
    first, second = request(text_of(20), 60, name="first"), request(text_of(200, 1), 20, name="second")
    pair.ask(first)
    pair.step_until(lambda: bool(pair.worker.members))
    assert pair.count_to_first_token(second)[0] > 200 // 16
    assert pair.finish_with(first, second) == [True, True]


@VOCABULARIES
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_next_turn_reads_only_what_is_new(draft: str, is_foreign: bool) -> None:
    pair = Pair(make_draft(draft, is_foreign))
    first = request(text_of(200), 30)
    assert pair.count_to_drafts(first) >= 199
    pair.finish_with(first)
    second = request([*first.prompt, *expected(first), *text_of(40, 3)], 30, name="second")
    # Random answers take many tokens of another vocabulary, and the last ones are settled late.
    assert pair.count_to_drafts(second) <= (180 if is_foreign else 48)
    assert pair.finish_with(second) == [True]


@VOCABULARIES
@pytest.mark.parametrize("draft", DRAFTS)
def test_texts_with_a_common_beginning_read_it_once(draft: str, is_foreign: bool) -> None:
    pair, fed = Pair(make_draft(draft, is_foreign)), []
    for i in range(4):
        asked = request([*text_of(200), *text_of(20, i + 1)], 12, name=f"{i}")
        fed.append(pair.count_to_drafts(asked))
        pair.finish_with(asked)
    assert fed[0] >= 219
    # State is kept where the second text left the first, so it helps from the third one on.
    assert max(fed[1 if draft == "llama" else 2 :]) <= (120 if is_foreign else 40)


@pytest.mark.parametrize("name", DRAFTS)
def test_what_was_read_of_earlier_texts_is_right(name: str) -> None:
    """Let a model draft for itself: it is always right, unless its caches hold something else."""
    pair, fed = Pair(loaded_once(name), name), []
    for i, end in enumerate((150, 150, 120, 150, 120)):
        asked = request([*text_of(150)[:end], *text_of(9, i)], 12, name=f"{i}")
        fed.append(pair.count_to_drafts(asked))
        pair.finish_with(asked)
        last = pair.answers[asked.id].events[-1]
        assert isinstance(last, Finished)
        assert last.usage.drafting.num_accepted == last.usage.drafting.num_drafted > 0
    assert max(fed[3:]) < 40


def test_choices_of_one_prompt_read_it_once() -> None:
    pair = Pair(loaded_once("llama"))
    asked = [request(text_of(200), 30, name=f"{i}", temperature=0.9, seed=i) for i in range(3)]
    num_fed = pair.draft.num_fed
    for one in asked:
        pair.ask(one)
    pair.step_until(lambda: any(pair.is_read(one.id) for one in asked))
    pair.step_until(lambda: not pair.prefills())
    assert pair.draft.num_fed - num_fed < 240
    assert pair.finish_with(*asked) == [True, True, True]


def test_without_a_prefix_cache_every_text_is_read_in_full() -> None:
    pair = Pair(loaded_once("llama"), prefix_cache_bytes=0)
    for name in ("first", "second"):
        asked = request(text_of(200), 20, name=name)
        assert pair.count_to_drafts(asked) >= 199
        assert pair.finish_with(asked) == [True]


# A token costs more in each case, so drafts begin later, and at last never.
@pytest.mark.parametrize(
    ("token_s", "earliest", "latest"),
    [(0.001, 2, 2), (0.01, 4, 8), (0.014, 30, 110), (0.02, 999, 999), (5.0, 999, 999)],
)
def test_reading_stays_within_the_slowdown_budgets_of_all_rows(
    token_s: float, earliest: int, latest: int, timed: Callable[[Pair, float], None]
) -> None:
    pair = Pair(loaded_once("llama"))
    timed(pair, token_s)
    asked = request(text_of(300), 120, name="reads")
    neighbour = replace(request(text_of(20, 1), 120, name="none"), draft=DraftChoice("none"))
    pair.ask(asked)
    pair.ask(neighbour)
    own, other = pair.worker.live
    began_at = 999
    while pair.worker.has_work:
        pair.worker.step()
        if own.drafts and other.drafts:
            budget, others = own.drafts.slowdown_budget, other.drafts.slowdown_budget
            assert budget.spent_s <= 1.02 * budget.plain_s + ALLOWANCE_STEPS
            assert others.spent_s <= 1.02 * others.plain_s + ALLOWANCE_STEPS
        if pair.is_read("reads"):
            began_at = min(began_at, own.num_answered)
    assert earliest <= began_at <= latest
    assert pair.finish_with(asked, neighbour) == [latest < 999, False]


def test_a_text_that_four_answers_could_not_pay_for_is_dropped(timed: Callable[[Pair, float], None]) -> None:
    pair = Pair(loaded_once("llama"))
    timed(pair, 0.1)
    first = request(text_of(16), 30, name="first")
    pair.ask(first)
    assert pair.finish_with(first) == [True]
    num_fed = pair.draft.num_fed
    second = request(text_of(900, 1), 12, name="second")
    pair.ask(second)
    pair.finish()
    ended = pair.answers[second.id].finished()
    assert list(ended.tokens) == expected(second)
    assert (ended.usage.drafting.num_drafted, ended.usage.drafting.why_undrafted) == (0, TOO_LONG)
    # A few slices show what the text would take.
    assert pair.draft.num_fed - num_fed < 60


def test_a_long_text_is_read_over_several_turns(timed: Callable[[Pair, float], None]) -> None:
    pair, tokens, fed = Pair(loaded_once("llama")), text_of(300), []
    timed(pair, 0.018)
    for i in range(4):
        num_fed = pair.draft.num_fed
        asked = request(tokens, 12, name=f"{i}")
        pair.ask(asked)
        has_drafts = pair.finish_with(asked)
        fed.append(pair.draft.num_fed - num_fed)
        if has_drafts == [True]:
            break
        tokens = [*tokens, *expected(asked)]
    # Reading continued where it had ended.
    assert len(fed) == 2
    assert sum(fed) < 400


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("event", ["cancel", "fault", "fault of the draft model"])
def test_anything_may_happen_while_a_text_is_read(
    event: str, draft: str, timed: Callable[[Pair, float], None]
) -> None:
    pair = Pair(loaded_once(draft))
    asked = request(text_of(150), 40, temperature=0.8)
    neighbour = replace(request(text_of(30, 1), 50, name="none"), draft=DraftChoice("none"))
    timed(pair, 0.01)
    pair.ask(neighbour)
    pair.ask(asked)
    pair.step_until(lambda: any(prefill.num_computed >= 60 for prefill in pair.prefills()))
    if event == "cancel":
        pair.worker.cancel("r")
    elif event == "fault":
        pair.target.is_broken = True
    else:
        pair.draft.is_broken = True
    if event == "cancel":
        pair.finish_with(neighbour)
        assert pair.answers["r"].failed().kind == "cancelled"
    else:
        assert pair.finish_with(neighbour, asked) == [False, event == "fault"]
    assert pair.worker.stats.num_failed_steps == (event == "fault")
    again = replace(asked, id="again")
    assert pair.count_to_drafts(again) <= (100 if event == "cancel" else 160)
    assert pair.finish_with(again) == [True]


def test_memory_for_reading_is_given_back_before_a_request_is_preempted(
    timed: Callable[[Pair, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(loaded_once("llama"))
    timed(pair, 0.02)
    asked = [request(text_of(length, length), 40, name=f"{length}") for length in (150, 20)]
    for one in asked:
        pair.ask(one)
    pair.step_until(lambda: any(prefill.num_computed >= 60 for prefill in pair.prefills()))
    make_room, refusals = MemoryBudget.make_room, [False]
    monkeypatch.setattr(
        MemoryBudget, "make_room", lambda *args: refusals.pop() if refusals else make_room(*args)
    )
    assert pair.finish_with(*asked) == [False, True]
    assert pair.worker.stats.num_preemptions == 0


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_preempted_row_is_read_again(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(loaded_once(draft))
    asked = [request(text_of(length, length), 30, name=f"{length}") for length in (20, 150)]
    for one in asked:
        pair.ask(one)
    pair.step_until(lambda: pair.is_read("150"))
    make_room, refusals = MemoryBudget.make_room, [False, False]
    monkeypatch.setattr(
        MemoryBudget, "make_room", lambda *args: refusals.pop() if refusals else make_room(*args)
    )
    assert pair.finish_with(*asked) == [True, True]
    assert pair.worker.stats.num_preemptions == 1


def test_the_memory_of_a_text_that_is_read_is_counted() -> None:
    pair = Pair(loaded_once("llama"))
    pair.count_to_first_token(request(text_of(500), 60))
    budget, sequences = pair.worker.queue.memory_budget, pair.worker.live
    rows = pair.worker.batch.rows_by_model
    assert budget.make_room(sequences, [], rows)
    # Where room is short, buffers are not made larger ahead of need, and less is used.
    for _ in range(3):
        budget.room_bytes = budget.used_bytes
        assert budget.make_room(sequences, [], rows)
    assert not budget.reserve_draft_prefill(500)
    assert not budget.make_room(sequences, [], rows, sequences)
    budget.room_bytes *= 2
    assert budget.make_room(sequences, [], rows, sequences)


def test_the_prefix_caches_share_memory_and_that_of_the_draft_model_gives_way_first() -> None:
    pair = Pair(loaded_once("llama"), prefix_cache_bytes=2**20)
    budget, asked = pair.worker.queue.memory_budget, request(text_of(200), 20)
    drafts, target = budget.prefixes
    # Two equal models.
    assert drafts.budget_bytes == target.budget_bytes == 2**19
    pair.ask(asked)
    pair.finish_with(asked)
    held = target.num_bytes
    assert drafts.num_bytes
    budget.room_bytes = held
    budget.make_room([], [], pair.worker.batch.rows_by_model)
    assert (drafts.num_bytes, target.num_bytes) == (0, held)
    budget.room_bytes = held - 1
    budget.make_room([], [], pair.worker.batch.rows_by_model)
    assert target.num_bytes < held


def test_slices_grow_until_they_take_a_step_and_shrink_again() -> None:
    pace, taken, token_s = Pace(512), [], 0.001
    for _ in range(20):
        taken.append(pace.num_tokens)
        pace.observe(pace.num_tokens, 0.01 + token_s * pace.num_tokens, limit_s=0.2)
        token_s = 0.001 if len(taken) < 12 else 0.004
    assert taken[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert all(b <= 2 * a for a, b in pairwise(taken))
    assert 180 <= taken[11] <= 200
    assert 40 <= taken[-1] <= 52
    # The end of a text teaches nothing, and a slow model gets slices that are not too small.
    before = pace.token_s
    pace.observe(2, 5.0, limit_s=0.2)
    assert pace.token_s == before
    for _ in range(9):
        pace.observe(pace.num_tokens, 50.0, limit_s=0.2)
    assert pace.num_tokens == draft_prefiller.MIN_SLICE_TOKENS
