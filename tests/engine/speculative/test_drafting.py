"""Drafting never changes the answer, with any drafter and architecture, alone and in a batch."""

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.base import NO_DRAFT, Draft, Drafter, DraftQuery, SequenceStart
from reprise.drafters.repetition import score_in_slices
from reprise.engine.batch.batch import Device
from reprise.engine.engine import Engine
from reprise.engine.interface.events import Delta
from reprise.engine.interface.request import DraftChoice, DraftType, GenerationRequest
from reprise.engine.kv_cache import sliding_window
from reprise.engine.speculative.acceptance import Acceptance
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, SlowdownBudget
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_model.forecast import DraftForecast, DraftWork
from reprise.engine.speculative.draft_model.model import MAX_BACKLOG_TOKENS, DraftModel
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.speculative.verify import RowInput
from tests.combinations import spread
from tests.drafters.fakes import Oracle, scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.support import CONFIGS, Answer, ask, make_loaded, oracle, prompt_of, request

TEMPERATURES = [0.0, 0.8]


class Scripted:
    """A drafter that knows the answers. chance: that a token is right. silence: share of empty drafts."""

    name = "suffix"

    def __init__(
        self, answers: dict[tuple[int, ...], list[int]], chance: float, silence: float = 0.0
    ) -> None:
        self.answers, self.chance, self.silence = answers, chance, silence
        self.open_now: dict[int, tuple[list[int], int]] = {}
        self.num_recorded = 0

    def open(self, start: SequenceStart) -> None:
        self.open_now[start.seq] = self.answers[tuple(start.prompt)], 0

    def propose(self, query: DraftQuery) -> Draft:
        answer, at = self.open_now[query.seq]
        rng = random.Random(f"{query.seq} {at}")
        if rng.random() < self.silence:
            return NO_DRAFT
        tokens = [
            token if rng.random() < self.chance else (token + 1) % 4096
            for token in answer[at : at + rng.randint(1, query.limit)]
        ]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        answer, at = self.open_now[seq]
        assert answer[at : at + len(tokens)] == list(tokens)
        self.open_now[seq] = answer, at + len(tokens)

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_verified >= 1
        assert seq in self.open_now
        self.num_recorded += 1

    def close(self, seq: int) -> None:
        del self.open_now[seq]


def raising(answers: dict[tuple[int, ...], list[int]], method: str) -> Scripted:
    """Make a drafter that raises in one of its methods."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault in a drafter")

    drafter = Scripted(answers, 1.0)
    setattr(drafter, method, fail)
    return drafter


def sources(drafter: Drafter) -> Callable[[str], DraftSources]:
    return lambda _: DraftSources({"suffix": drafter}, scored(1.0))


def requests(temperature: float) -> list[GenerationRequest]:
    lengths = [3, 40, 17, 90, 8, 25]
    return [
        request(prompt_of(length, i), 16 + 2 * i, name=str(i), temperature=temperature, seed=i)
        for i, length in enumerate(lengths)
    ]


@functools.cache
def answers_of(name: str, temperature: float) -> dict[tuple[int, ...], list[int]]:
    """Return the true answer to each request, by prompt."""
    loaded = make_loaded(name)
    return {one.prompt: oracle(loaded, one) for one in requests(temperature)}


def run(engine: Engine, asked: Sequence[GenerationRequest]) -> list[list[int]]:
    answers: list[Answer] = [ask(engine, one) for one in asked]
    return [list(answer.finished().tokens) for answer in answers]


@pytest.mark.parametrize(
    ("name", "chance", "temperature"),
    spread(list(CONFIGS), {"oracle": 1.0, "liar": 0.0, "coin": 0.7}, TEMPERATURES),
)
def test_drafting_never_changes_the_tokens(
    name: str, chance: float, temperature: float, start_engine: StartEngine
) -> None:
    asked, expected = requests(temperature), answers_of(name, temperature)
    drafter = Scripted(expected, chance)
    engine = start_engine(name, make_sources=sources(drafter), draft_type="suffix")
    first = ask(engine, asked[0]).finished()
    assert list(first.tokens) == expected[asked[0].prompt]
    report = first.usage.drafting
    assert sum(length for _, length in report.origins) == len(first.tokens)
    assert sum(length for source, length in report.origins if source == "suffix") == report.num_accepted
    assert 0 < report.drafter_s < first.usage.total_s
    assert run(engine, asked) == [expected[one.prompt] for one in asked]
    assert run(engine, asked[3:5]) == [expected[one.prompt] for one in asked[3:5]]
    assert drafter.num_recorded
    assert not drafter.open_now


@pytest.mark.parametrize(("chance", "drafted_by"), [(1.0, {"suffix", "model"}), (0.0, {"model"})])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_deltas_say_where_their_text_comes_from(
    chance: float, drafted_by: set[str], temperature: float, start_engine: StartEngine
) -> None:
    asked, expected = requests(temperature), answers_of("llama", temperature)
    engine = start_engine("llama", make_sources=sources(Scripted(expected, chance)), draft_type="suffix")
    traced = [dataclasses.replace(one, reports_origins=True) for one in asked[:3]]
    answers = [ask(engine, one) for one in [*traced, *asked[3:]]]
    assert [list(one.finished().tokens) for one in answers] == [expected[one.prompt] for one in asked]
    for answer in answers[:3]:
        deltas = [event for event in answer.events if isinstance(event, Delta)]
        assert ["".join(text for text, _ in one.origins) for one in deltas] == [one.text for one in deltas]
    runs = [
        run
        for answer in answers[:3]
        for one in answer.events
        if isinstance(one, Delta)
        for run in one.origins
    ]
    assert {source for _, source in runs} == drafted_by
    assert all(not one.origins for answer in answers[3:] for one in answer.events if isinstance(one, Delta))


@pytest.mark.parametrize("name", CONFIGS)
def test_plain_and_verification_steps_may_alternate(name: str, start_engine: StartEngine) -> None:
    asked, expected = requests(0.8), answers_of(name, 0.8)
    drafter = Scripted(expected, 0.8, silence=0.8)
    engine = start_engine(name, make_sources=sources(drafter), draft_type="suffix", max_rows=3)
    assert run(engine, asked) == [expected[one.prompt] for one in asked]


@pytest.mark.parametrize(
    ("name", "is_drafting"),
    [("llama", True), ("gemma3_text", True), ("mamba2", True), ("qwen3_next", True), ("baichuan_m1", False)],
)
def test_exact_mode_drafts_only_where_bytes_agree(
    name: str, is_drafting: bool, start_engine: StartEngine
) -> None:
    asked, expected = requests(0.8)[:3], answers_of(name, 0.8)
    costs = StepCosts({(1, width): 1.0 for width in (1, 2, 4)}, is_learned=False)
    make_sources = sources(Scripted(expected, 1.0))
    engine = start_engine(
        name, make_sources=make_sources, costs=costs, draft_type="suffix", exact=True, max_rows=3
    )
    answers = [ask(engine, one).finished() for one in asked]
    assert [list(answer.tokens) for answer in answers] == [expected[one.prompt] for one in asked]
    assert run(engine, asked) == [expected[one.prompt] for one in asked]
    assert all(bool(answer.usage.drafting.num_drafted) == is_drafting for answer in answers)


@pytest.mark.parametrize("method", ["open", "propose", "observe", "note_verified", "close"])
def test_a_drafter_that_raises_costs_nothing_but_its_drafts(method: str, start_engine: StartEngine) -> None:
    asked, expected = requests(0.0)[:3], answers_of("llama", 0.0)
    engine = start_engine("llama", make_sources=sources(raising(expected, method)), draft_type="suffix")
    assert run(engine, asked) == [expected[one.prompt] for one in asked]


@pytest.mark.parametrize(
    ("name", "draft", "temperature"),
    spread(["llama", "gemma3_text", "mamba2"], ["llama", "gemma3_text", "mamba2"], TEMPERATURES),
)
def test_a_draft_model_never_changes_the_tokens(
    name: str, draft: str, temperature: float, start_engine: StartEngine
) -> None:
    asked, expected = requests(temperature), answers_of(name, temperature)
    engine = start_engine(
        name,
        make_sources=lambda _: DraftSources({}, scored(0.0)),
        load_draft=lambda _: make_loaded(draft),
        draft_type="draft-model",
        draft_model="the one that load_draft makes",
        num_draft_tokens=4,
        prefill_chunk_tokens=16,
    )
    assert run(engine, asked) == [expected[one.prompt] for one in asked]
    last = ask(engine, asked[1]).finished()
    assert list(last.tokens) == expected[asked[1].prompt]
    if draft == name:
        assert last.usage.drafting.num_drafted
        assert last.usage.drafting.num_accepted == last.usage.drafting.num_drafted
        assert dict(last.usage.drafting.origins)["draft-model"] > 0
        assert 0 < last.usage.drafting.drafter_s < last.usage.total_s


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_draft_model_catches_up_in_one_step_after_a_copy(name: str, start_engine: StartEngine) -> None:
    num_copied = 3 * MAX_BACKLOG_TOKENS
    asked = request(prompt_of(20), num_copied + 20)
    expected = oracle(make_loaded(name), asked)
    engine = start_engine(
        name,
        make_sources=sources(Oracle({asked.prompt: expected}, "suffix", num_copied)),
        load_draft=lambda _: make_loaded(name),
        draft_model="the one that load_draft makes",
        num_draft_tokens=4,
        gate="off",
    )
    finished = ask(engine, asked).finished()
    assert list(finished.tokens) == expected
    # Steps that only catch up would add to those that bring five tokens.
    assert finished.usage.drafting.num_forwards == ceil(asked.max_tokens / 5)


def test_a_draft_model_with_windows_goes_back_over_many_forwards(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The drafts of a random model are never accepted, so it would soon not be used any more.
    monkeypatch.setattr(DraftForecast, "rate", 0.9)
    monkeypatch.setattr(Device, "lap", lambda *_: None)
    # The draft model's buffer fills up in the middle of a draft, just after a place up to which it is cut.
    monkeypatch.setattr(sliding_window, "SLACK_TOKENS", 32)
    asked = [request(prompt_of(52, 52), 60)]
    engine = start_engine(
        "llama",
        make_sources=lambda _: DraftSources({}, scored(0.0)),
        load_draft=lambda _: make_loaded("gemma3_text"),
        draft_type="draft-model",
        draft_model="the one that load_draft makes",
        num_draft_tokens=12,
    )
    loaded = make_loaded("llama")
    for one in asked:
        finished = ask(engine, one).finished()
        assert list(finished.tokens) == oracle(loaded, one)
        # If the rollback had failed, the request would have got no more drafts.
        assert finished.usage.drafting.num_drafted >= 12 * (one.max_tokens - 14)


class Faulty:
    """A model that returns wrong logits, or raises, in the calls for which is_wrong(call number) holds."""

    def __init__(self, model: Any, is_wrong: Callable[[int], bool], raises: bool = False) -> None:
        self.model, self.is_wrong, self.raises = model, is_wrong, raises
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.num_calls += 1
        logits: mx.array = self.model(tokens, cache=cache)
        if not self.is_wrong(self.num_calls):
            return logits
        if self.raises:
            raise RuntimeError("a fault in the draft model")
        return -logits


def test_what_one_row_lacks_after_a_copy_is_not_counted_as_fed_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works, fill_in = list[DraftWork](), DraftModel.fill_in

    def noted(self: DraftModel, inputs: list[RowInput], *given: Any) -> DraftWork | None:
        if (work := fill_in(self, inputs, *given)) and all(one.num_wanted for one in inputs):
            works.append(work)
        return work

    monkeypatch.setattr(DraftModel, "fill_in", noted)
    num_copied = 8 * MAX_BACKLOG_TOKENS
    asked = [request(prompt_of(20, at), num_copied + 40 + 40 * at, name=str(at)) for at in range(2)]
    asked[1] = dataclasses.replace(asked[1], draft=DraftChoice("draft-model"))
    copied = {asked[0].prompt: expected_tokens("llama", asked[0])}
    driven = Driven(
        loaded_once("llama"),
        lambda _: DraftSources({"suffix": Oracle(copied, "suffix", num_copied)}, scored(1.0)),
        loaded_once("llama"),
        draft_model="any",
        num_draft_tokens=4,
        gate="off",
    )
    for one in asked:
        driven.ask(one)
    driven.finish()
    long = [work for work in works if work.num_fed > MAX_BACKLOG_TOKENS]
    assert [work.fed[1] for work in long] == [2] * len(long) != []
    assert all(work.fed[0] > MAX_BACKLOG_TOKENS for work in long)


def test_a_recurrent_draft_model_continues_after_rejected_drafts(start_engine: StartEngine) -> None:
    asked = request(prompt_of(20), 300, temperature=0.8)
    engine = start_engine(
        "mamba2",
        make_sources=lambda _: DraftSources({}, scored(0.0)),
        load_draft=lambda _: make_loaded(
            "mamba2", lambda model: Faulty(model, lambda call: call > 60 and call % 5 == 0)
        ),
        draft_type="draft-model",
        draft_model="the one that load_draft makes",
        num_draft_tokens=8,
    )
    finished = ask(engine, asked).finished()
    assert list(finished.tokens) == oracle(make_loaded("mamba2"), asked)
    # Four calls in five are right, so about every other draft is accepted in part.
    assert finished.usage.drafting.num_accepted > 100


def test_a_draft_model_that_cannot_read_the_prompt_costs_only_drafts(start_engine: StartEngine) -> None:
    asked, expected = requests(0.8)[:4], answers_of("llama", 0.8)
    broken = []

    def wrap(model: Any) -> Any:
        broken.append(Faulty(model, lambda call: call == broken[0].num_until_fault, raises=True))
        broken[0].num_until_fault = 0
        return broken[0]

    engine = start_engine(
        "llama",
        make_sources=lambda _: DraftSources({}, scored(0.0)),
        load_draft=lambda _: make_loaded("llama", wrap),
        draft_type="draft-model",
        draft_model="the one that load_draft makes",
    )
    broken[0].num_until_fault = broken[0].num_calls + 1
    answers = [ask(engine, one).finished() for one in asked]
    assert [list(answer.tokens) for answer in answers] == [expected[one.prompt] for one in asked]
    assert [bool(answer.usage.drafting.num_drafted) for answer in answers] == [False, True, True, True]


@pytest.mark.parametrize("draft_type", ["none", "suffix"])
def test_no_prompt_is_read_by_a_draft_model_that_will_not_draft(
    draft_type: DraftType, start_engine: StartEngine
) -> None:
    asked, expected = requests(0.8)[1], answers_of("llama", 0.8)
    made = []
    engine = start_engine(
        "llama",
        make_sources=sources(Scripted(expected, 0.5)),
        load_draft=lambda _: make_loaded(
            "llama", lambda model: made.append(Faulty(model, lambda _: False)) or made[0]
        ),
        draft_model="the one that load_draft makes",
    )
    before = made[0].num_calls
    asked = dataclasses.replace(asked, draft=DraftChoice(draft_type))
    assert run(engine, [asked]) == [expected[asked.prompt]]
    assert made[0].num_calls == before


def test_the_bound_holds_although_a_recurrent_row_feeds_accepted_tokens_again(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the gate overestimate the drafts: of each draft only the first token is right."""
    asked = request(prompt_of(20), 200, temperature=0.8)
    answer = oracle(make_loaded("mamba2"), asked)
    beyond = []

    class FirstOnly(Scripted):
        def propose(self, query: DraftQuery) -> Draft:
            _, at = self.open_now[query.seq]
            tokens = answer[at : at + 1] + [(token + 1) % 4096 for token in answer[at + 1 : at + 15]]
            return Draft(tokens[: query.limit], self.name, 0, 0.9) if tokens else NO_DRAFT

    def watch(slowdown_budget: SlowdownBudget, step_s: float, plain_s: float, num_tokens: int) -> None:
        charge(slowdown_budget, step_s, plain_s, num_tokens)
        beyond.append(slowdown_budget.spent_s - slowdown_budget.plain_s - ALLOWANCE_STEPS * plain_s)

    charge = SlowdownBudget.charge
    monkeypatch.setattr(SlowdownBudget, "charge", watch)
    monkeypatch.setattr(Acceptance, "rate", lambda *_: 0.95)
    monkeypatch.setattr(Device, "lap", lambda *_: None)
    engine = start_engine(
        "mamba2",
        make_sources=sources(FirstOnly({asked.prompt: answer}, 1.0)),
        costs=StepCosts({(1, 1): 1.0, (1, 2): 3.0, (1, 16): 4.0}, is_learned=False),
        draft_type="suffix",
        draft_overhead=0.0,
    )
    assert run(engine, [asked]) == [answer]
    assert max(beyond) <= 1e-9


@pytest.mark.parametrize("draft", ["qwen3_next", "lfm2"])
def test_a_draft_model_with_state_does_not_read_accepted_drafts_again(
    draft: str, start_engine: StartEngine
) -> None:
    widths: list[int] = []
    is_started: list[bool] = []

    class Recorded:
        """The same model, but wrong about every third token; it records how many tokens each step feeds."""

        def __init__(self, model: Any) -> None:
            self.model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
            widths.append(tokens.shape[1])
            offset = next(one.offset for one in cache if hasattr(one, "offset"))
            logits: mx.array = self.model(tokens, cache=cache)
            return -logits if is_started and (offset + tokens.shape[1]) % 3 == 0 else logits

    asked = request(prompt_of(20), 60)
    engine = start_engine(
        draft,
        make_sources=lambda _: DraftSources({}, scored(0.0)),
        load_draft=lambda _: make_loaded(draft, wrap=Recorded),
        draft_model="the one that load_draft makes",
        costs=StepCosts({(1, width): 1.0 for width in range(1, 6)}, is_learned=False),
        draft_type="draft-model",
        num_draft_tokens=4,
    )
    is_started.append(True)
    widths.clear()
    assert run(engine, [asked]) == [oracle(make_loaded(draft), asked)]
    # The text is read first. Then a step feeds the newest token, as the third of four drafted ones was wrong.
    steps = [width for at, width in enumerate(widths) if sum(widths[:at]) >= len(asked.prompt)]
    assert set(steps) == {1}


def test_exact_mode_keeps_its_widths_when_a_draft_model_has_nothing(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a row gets no draft, because its draft model must catch up, the width must still be a tried one."""
    monkeypatch.setattr("reprise.engine.speculative.draft_model.model.MAX_FEEDS", 1)
    first, second = (request(prompt_of(20, i), 300, name=str(i), seed=i, temperature=0.8) for i in range(2))
    loaded = make_loaded("llama")
    expected = {one.prompt: oracle(loaded, one) for one in (first, second)}
    shapes: list[tuple[int, ...]] = []

    class Known(Scripted):
        """Drafts two tokens for the first request, and seven for the second until token 150, then none."""

        def propose(self, query: DraftQuery) -> Draft:
            answer, at = self.open_now[query.seq]
            longest = 2 if answer == expected[first.prompt] else 7 if at < 150 else 0
            tokens = answer[at : at + min(longest, query.limit)]
            return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    class Recorded:
        """A model that is wrong at width 3 with two rows, as a kernel may be, and records all shapes."""

        def __init__(self, model: Any) -> None:
            self.model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            shapes.append(tuple(tokens.shape))
            logits: mx.array = self.model(tokens, cache=cache)
            return -logits if tokens.shape == (2, 3) else logits

    engine = start_engine(
        "llama",
        wrap=Recorded,
        make_sources=sources(Known(expected, 1.0)),
        load_draft=lambda _: make_loaded("llama"),
        costs=StepCosts(
            {(rows, width): 1.0 for rows in (1, 2) for width in (1, 2, 3, 4, 5, 8)}, is_learned=False
        ),
        draft_model="the one that load_draft makes",
        exact=True,
        max_rows=2,
        num_draft_tokens=7,
        gate="off",
    )
    shapes.clear()
    assert run(engine, [first, second]) == [expected[first.prompt], expected[second.prompt]]
    assert (2, 8) in shapes
    assert (2, 3) not in shapes


SETTINGS = [
    {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "min_p": 0.01},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    # Twelve tokens and a penalty that makes them alternate, so that one missed count changes the answer.
    {"frequency_penalty": 5.0, "logit_bias": tuple((token, 300.0) for token in range(7, 19))},
    {"temperature": 0.7, "frequency_penalty": 1.5, "logit_bias": ((7, 3.0), (9, -100.0))},
    {"temperature": 1.3, "repetition_penalty": 1.2, "top_p": 0.9},
]


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_penalties_filters_and_bias_see_the_drafted_tokens(name: str, start_engine: StartEngine) -> None:
    asked = [request(prompt_of(20 + i, i), 24, name=str(i), **s) for i, s in enumerate(SETTINGS)]
    plain = run(start_engine(name), asked)
    answers = {one.prompt: tokens for one, tokens in zip(asked, plain, strict=True)}
    for chance, silence in ((1.0, 0.0), (0.7, 0.0), (0.0, 0.0), (0.7, 0.6)):
        drafter = Scripted(answers, chance, silence)
        engine = start_engine(name, make_sources=sources(drafter), draft_type="suffix")
        assert run(engine, asked) == plain
    assert [run(engine, [one])[0] for one in asked] == plain


def test_a_request_cancelled_in_mid_draft_leaves_the_others_as_they_were(start_engine: StartEngine) -> None:
    asked, expected = requests(0.8), answers_of("llama", 0.8)
    drafter = Scripted(expected, 0.7)
    engine = start_engine("llama", make_sources=sources(drafter), draft_type="suffix")
    answers = []
    for at, one in enumerate(asked):
        answer = Answer()
        if at % 2:
            answer.on_delta = functools.partial(engine.cancel, one.id)
        engine.submit(one, answer)
        answers.append(answer)
    for at, (one, answer) in enumerate(zip(asked, answers, strict=True)):
        if at % 2 == 0:
            assert list(answer.finished().tokens) == expected[one.prompt]
        else:
            answer.end()
    assert run(engine, asked) == [expected[one.prompt] for one in asked]
    assert not drafter.open_now


@pytest.mark.parametrize(
    ("name", "draft_type"),
    spread(["llama", "gemma3_text", "mamba2"], ["suffix", "ngram-simple", "ngram-mod", "auto"]),
)
def test_no_real_drafter_changes_the_tokens(
    name: str, draft_type: DraftType, start_engine: StartEngine
) -> None:
    settings = Settings(ngram_mod_size=3, ngram_table_entries=4096)
    engine = start_engine(
        name,
        make_sources=lambda v: DraftSources(make_drafters(settings, v), score_in_slices),
        prefill_chunk_tokens=32,
    )
    # Each prompt contains the answer to its own beginning, so that there is much to draft.
    loaded = make_loaded(name)
    asked = []
    for seed in range(4):
        first = request(prompt_of(12, seed), 30, temperature=0.8, seed=seed)
        prompt = [*first.prompt, *oracle(loaded, first), *first.prompt]
        wanted = GenerationRequest(
            str(seed), tuple(prompt), 30, first.sampling, draft=DraftChoice(draft_type)
        )
        asked.append(dataclasses.replace(wanted, prediction=tuple(prompt[12:])))
    expected = [oracle(loaded, one) for one in asked]
    assert run(engine, asked) == expected
    assert run(engine, asked[:2]) == expected[:2]
    last = ask(engine, asked[3]).finished()
    assert list(last.tokens) == expected[3]
    assert last.usage.drafting.num_drafted
