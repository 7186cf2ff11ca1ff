"""Windowed decoding is the paper's algorithm, and the same alone, in a batch and after a restart."""

import dataclasses
import functools
from typing import Any

import mlx.core as mx
import pytest

from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.engine.engine import Engine
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.events import Delta
from reprise.engine.interface.request import (
    DraftChoice,
    GenerationRequest,
    Grammar,
    ThinkingBudget,
    WindowSettings,
)
from reprise.engine.kv_cache import rows
from reprise.engine.model.loading import LoadedModel
from reprise.engine.sampling.sampler import find_entropies
from reprise.engine.speculative.costs.cost_table import USUAL
from reprise.engine.speculative.costs.slowdown_budget import SlowdownBudget
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.speculative.verify import Outcome, RowInput
from reprise.engine.speculative.window import Filled, Window, WindowInput
from tests.drafters.fakes import Coin, Liar, scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven
from tests.engine.foreseeing import foreseeing, no_lookups
from tests.engine.support import VOCAB_SIZE, ask, make_loaded, oracle, prompt_of, request
from tests.engine.windows import (
    LAYERS,
    MASK,
    Reference,
    ask_for,
    make_window_model,
    reference,
    windowed,
)

NEVER_END = tuple((token, -100.0) for token in make_window_model().tokenizer.eos_ids)
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 5},
    "anchored": {"has_anchor": True, "temperature": 0.8},
    "one by one": {"entropy_threshold": None, "window_size": 4},
    "window of one": {"window_size": 1},
    "steep": {"pos_penalty_factor": 0.2, "entropy_threshold": 6.0, "window_size": 24},
    "all at once": {"entropy_threshold": 9.0, "window_size": 5},
    "penalized": {"frequency_penalty": 2.0},
}


@functools.cache
def expected(asked: GenerationRequest, family: str = "llama") -> Reference:
    """Return what the paper's algorithm answers."""
    return reference(make_window_model(family), asked)


def run(engine: Engine, asked: list[GenerationRequest]) -> list[list[int]]:
    answers = [ask(engine, one) for one in asked]
    return [list(answer.finished().tokens) for answer in answers]


def start_streaming(start_engine: StartEngine, family: str = "llama", **more: Any) -> Engine:
    return start_engine(load=lambda _: make_window_model(family), **more)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("family", LAYERS)
def test_alone_it_equals_the_papers_algorithm(family: str, how: str) -> None:
    asked, driven = ask_for(prompt_of(21), 30, **HOW[how]), Driven(make_window_model(family))
    answer = driven.ask(asked)
    driven.finish()
    finished, wanted = answer.finished(), expected(asked, family)
    assert list(finished.tokens) == wanted.answer
    assert finished.usage.drafting.num_forwards == wanted.num_forwards


def test_the_requests_of_these_tests_fill_in_several_tokens_at_once_and_out_of_order() -> None:
    found = [expected(ask_for(prompt_of(21), 30, **HOW[how])) for how in ("greedy", "sampled", "anchored")]
    assert all(one.num_forwards < 0.8 * len(one.answer) for one in found)
    assert all(one.filled_in != sorted(one.filled_in) for one in found)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("family", LAYERS)
def test_one_by_one_with_the_anchor_it_is_plain_decoding(
    family: str, temperature: float, start_engine: StartEngine
) -> None:
    engine, plain = start_streaming(start_engine, family), request(prompt_of(21), temperature=temperature)
    asked = windowed(plain, has_anchor=True, entropy_threshold=None, window_size=3)
    assert run(engine, [asked]) == [oracle(make_window_model(family), plain)]


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
def test_rows_of_all_kinds_share_a_batch_while_others_join_and_leave(
    temperature: float, start_engine: StartEngine
) -> None:
    loaded, asked, wanted = make_window_model(), [], {}
    for i in range(18):
        sampling = {"temperature": temperature, "seed": i}
        one = request(prompt_of(5 + (i * 37) % 60, i), 8 + (i * 13) % 31, name=str(i), **sampling)
        if i % 2:
            how = sampling | list(HOW.values())[i // 2 % len(HOW)]
            asked.append(ask_for(one.prompt, one.max_tokens, name=one.id, **how))
            wanted[one.prompt] = expected(asked[-1]).answer
        else:
            kind = ("none", "wedlm", "suffix", "auto")[i // 2 % 4]
            asked.append(dataclasses.replace(one, draft=DraftChoice(kind)))
            wanted[one.prompt] = oracle(loaded, one)
    coin = Coin(wanted, 0.7, num_ids=VOCAB_SIZE, name="suffix")
    sources = DraftSources({"suffix": coin}, scored(1.0))
    engine = start_streaming(start_engine, make_sources=lambda _: sources, max_rows=4, max_stall_ms=0)
    assert run(engine, asked) == list(wanted.values())
    assert coin.num_accepted > 20
    assert coin.num_open == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_whose_own_masks_draft_share_a_batch_with_rows_with_windows(
    temperature: float, start_engine: StartEngine
) -> None:
    loaded = foreseeing()
    engine = start_engine(load=lambda _: loaded, make_sources=no_lookups, draft_type="wedlm", max_rows=5)
    sampling = {"temperature": temperature}
    masked = [request(prompt_of(9 + 7 * i, i), 30 + i, name=f"masked {i}", **sampling) for i in range(4)]
    in_windows = [
        ask_for(prompt_of(8 + 9 * i, i), 40, name=f"windowed {i}", entropy_threshold=2.0, **sampling)
        for i in range(4)
    ]
    alone = [run(engine, [one])[0] for one in in_windows]
    answers = [ask(engine, one) for pair in zip(masked, in_windows, strict=True) for one in pair]
    finished = [answer.finished() for answer in answers]
    assert [list(one.tokens) for one in finished[::2]] == [oracle(loaded, one) for one in masked]
    assert [list(one.tokens) for one in finished[1::2]] == alone
    assert all(one.usage.drafting.num_accepted for one in finished[::2])
    assert not any(one.usage.drafting.num_drafted for one in finished[1::2])


class Flaky:
    """A model whose forward passes of a certain width fail now and then."""

    def __init__(self, model: Any) -> None:
        self.model, self.num_wide = model, 0

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.num_wide += tokens.shape[0] > 1 and tokens.shape[1] > 16
        if self.num_wide in (4, 9):
            self.num_wide += 1
            raise RuntimeError("a kernel failed")
        logits: mx.array = self.model(tokens, cache=cache)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def test_a_failed_step_changes_no_answer(start_engine: StartEngine) -> None:
    loaded = make_window_model()
    flaky = LoadedModel(Flaky(loaded.model), loaded.tokenizer, loaded.info)
    engine = start_engine(load=lambda _: flaky, prefix_cache_bytes=0)
    asked = [ask_for(prompt_of(20 + i, i), 30, name=str(i)) for i in range(3)]
    assert run(engine, asked) == [expected(one).answer for one in asked]
    assert engine.counts().num_failed_steps == 2


def test_rows_that_outgrow_their_groups_do_not_change(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "FIRST_LIMIT", 32)
    engine = start_streaming(start_engine, max_rows=4, max_stall_ms=0)
    asked = [ask_for(prompt_of(5 + (i * 37) % 90, i), 20 + i, name=str(i), window_size=8) for i in range(6)]
    assert run(engine, asked) == [expected(one).answer for one in asked]


@pytest.mark.parametrize("how", ["greedy", "anchored", "penalized"])
def test_a_restart_in_mid_window_changes_nothing(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(make_window_model(), prefix_cache_bytes=0)
    budget, has_room = driven.worker.queue.memory_budget, []
    make_room = budget.make_room
    monkeypatch.setattr(budget, "make_room", lambda *given: has_room.pop() if has_room else make_room(*given))
    older = driven.ask(ask_for(prompt_of(12, 3), 40, name="older", logit_bias=NEVER_END))
    asked = ask_for(prompt_of(21), 30, **HOW[how])
    answer = driven.ask(asked)
    while driven.worker.has_work:
        driven.worker.step()
        for sequence in driven.worker.members:
            is_filled = sequence.window and any(sequence.window.places)
            if sequence.request is asked and is_filled and len(driven.worker.members) == 2:
                # The step finds no room, preempts the younger one, and looks again.
                has_room[:] = [True, False]
    assert driven.worker.stats.num_preemptions > 3
    assert list(answer.finished().tokens) == expected(asked).answer
    assert older.finished()


@pytest.mark.parametrize("how", ["greedy", "sampled", "anchored", "all at once"])
def test_a_shorter_answer_is_a_beginning_of_the_longer_one(how: str, start_engine: StartEngine) -> None:
    engine = start_streaming(start_engine)
    long = run(engine, [ask_for(prompt_of(21), 30, logit_bias=NEVER_END, **HOW[how])])[0]
    for max_tokens in (1, 2, 3, 7, 16, 29):
        short = ask_for(prompt_of(21), max_tokens, logit_bias=NEVER_END, **HOW[how])
        assert run(engine, [short]) == [long[:max_tokens]]


def test_the_end_of_the_context_changes_nothing(start_engine: StartEngine) -> None:
    loaded = make_window_model()
    short = dataclasses.replace(loaded, info=dataclasses.replace(loaded.info, context_tokens=64))
    engine = start_engine(load=lambda _: short)
    asked = ask_for(prompt_of(44), 20, logit_bias=NEVER_END)
    assert run(engine, [asked]) == [expected(asked).answer]


@pytest.mark.parametrize("slope", [0.001, 1.0, 50.0])
def test_measured_costs_change_nothing(slope: float, start_engine: StartEngine) -> None:
    costs = StepCosts({(1, width): 0.01 * (1 + slope * (width - 1)) for width in (1, 2, 4, 8, 16, 32)})
    engine = start_streaming(start_engine, costs=costs, draft_overhead=0.0, make_sources=no_lookups)
    asked = ask_for(prompt_of(21), 30)
    assert run(engine, [asked]) == [expected(asked).answer]


class Counting:
    """A model that counts its forward passes."""

    def __init__(self, model: Any) -> None:
        self.model, self.num_forwards = model, 0

    def __call__(self, *given: Any, **named: Any) -> mx.array:
        self.num_forwards += 1
        logits: mx.array = self.model(*given, **named)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def test_a_step_is_exactly_one_forward_pass() -> None:
    loaded = make_window_model()
    model = Counting(loaded.model)
    driven = Driven(LoadedModel(model, loaded.tokenizer, loaded.info))
    for i in range(3):
        driven.ask(ask_for(prompt_of(20 + i, i), 30, name=str(i), logit_bias=NEVER_END))
    driven.ask(request(prompt_of(9), 60, name="plain", logit_bias=NEVER_END))
    driven.step_until(lambda: len(driven.worker.members) == 4)
    while any(one.window for one in driven.worker.members):
        before = model.num_forwards
        driven.worker.step()
        assert model.num_forwards == before + 1
    driven.finish()


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_keys_and_values_are_those_of_a_plain_prefill(kv_bits: int | None) -> None:
    driven = Driven(make_window_model(), kv_bits=kv_bits)
    driven.ask(ask_for(prompt_of(21), 40, logit_bias=NEVER_END))
    driven.step_until(
        lambda: any(one.num_answered > 25 and any(one.window.places) for one in driven.worker.members)
    )
    (sequence,), held = driven.worker.members, driven.worker.rows.lengths[0]
    assert held > 30
    in_windows = driven.worker.rows.kv_slice(0, 0, held)
    plain = Driven(make_window_model(), kv_bits=kv_bits)
    plain.ask(request([*sequence.tokens[:held], 5], 4, logit_bias=NEVER_END))
    plain.step_until(lambda: bool(plain.worker.members))
    prefilled = plain.worker.rows.kv_slice(0, 0, held)
    assert all(mx.array_equal(one, other) for one, other in zip(in_windows, prefilled, strict=True))


def test_all_modes_share_the_prefix_cache(start_engine: StartEngine) -> None:
    engine, loaded = start_streaming(start_engine), make_window_model()
    first = ask_for(prompt_of(50), logit_bias=NEVER_END)
    (answer,) = run(engine, [first])
    follow_up = request([*first.prompt, *answer, *prompt_of(9, 5)])
    warm = ask(engine, follow_up).finished()
    # The tokens that were settled last had not been fed.
    assert warm.usage.num_cached_tokens >= 50 + len(answer) - 16
    assert list(warm.tokens) == oracle(loaded, follow_up)
    again = ask_for([*follow_up.prompt, *warm.tokens, 9])
    warm = ask(engine, again).finished()
    assert warm.usage.num_cached_tokens >= len(follow_up.prompt)
    assert list(warm.tokens) == expected(again).answer


def test_quantized_caches_give_the_same_tokens_alone_and_in_a_batch(start_engine: StartEngine) -> None:
    engine = start_streaming(start_engine, kv_bits=8, prefix_cache_bytes=0)
    asked = [ask_for(prompt_of(20 + 9 * i, i), 20, name=str(i)) for i in range(4)]
    alone = [run(engine, [one])[0] for one in asked]
    assert run(engine, asked) == alone
    plain = request(prompt_of(21))
    anchored = windowed(plain, has_anchor=True, entropy_threshold=None)
    assert run(engine, [anchored]) == run(engine, [plain])


@pytest.mark.parametrize("anchor", [False, True])
def test_under_a_grammar_holes_fill_from_left_to_right(anchor: bool, start_engine: StartEngine) -> None:
    engine = start_streaming(start_engine)
    plain = dataclasses.replace(
        request(prompt_of(21), 40, temperature=0.9), grammar=Grammar("regex", "([a-z]{3} [0-9]{3} ){4}end")
    )
    asked = windowed(plain, has_anchor=anchor)
    finished = ask(engine, asked).finished()
    drafting = finished.usage.drafting
    assert drafting.num_forwards == len(finished.tokens)
    if anchor:
        assert list(finished.tokens) == run(engine, [plain])[0]
    else:
        text = ask(engine, asked)
        text.finished()
        assert text.text.startswith(tuple("abcdefghijklmnopqrstuvwxyz"))
        assert list(finished.tokens) != run(engine, [plain])[0]


def test_an_end_right_of_a_hole_does_not_count(start_engine: StartEngine) -> None:
    asked = ask_for(prompt_of(21), 30, logit_bias=NEVER_END)
    found, engine = expected(asked), start_streaming(start_engine)
    early = [
        at
        for order, at in enumerate(found.filled_in)
        if at < 30 and any(left < at for left in found.filled_in[order + 1 :])
    ]
    at = next(at for at in early if found.answer.index(found.answer[at]) == at)
    ending = dataclasses.replace(asked, stop_tokens=(found.answer[at],))
    assert run(engine, [ending]) == [found.answer[: at + 1]]


def test_only_settled_tokens_are_sent_and_a_stop_string_right_of_a_hole_does_not_count() -> None:
    driven = Driven(make_window_model())
    asked = ask_for(prompt_of(21), 30, logit_bias=NEVER_END)
    answer = driven.ask(asked)
    whole = expected(asked)
    num_checked = 0
    while driven.worker.has_work:
        driven.worker.step()
        for sequence in driven.worker.members:
            assert sequence.tokens[21:] == whole.answer[: sequence.num_answered]
            num_checked += bool(sequence.window and any(sequence.window.places))
    assert num_checked > 3
    stop = answer.text[12:15]
    stopping = Driven(make_window_model())
    cut = stopping.ask(dataclasses.replace(asked, stop=(stop,)))
    stopping.finish()
    assert cut.text == answer.text[: answer.text.index(stop)]
    assert cut.finished().stop == stop


def test_log_probabilities_are_those_of_the_moment_of_filling(start_engine: StartEngine) -> None:
    engine = start_streaming(start_engine)
    asked = dataclasses.replace(ask_for(prompt_of(21), 24, logit_bias=NEVER_END), top_logprobs=2)
    answer = ask(engine, asked)
    assert list(answer.finished().tokens) == expected(asked).answer
    entries = [entry for event in answer.events if isinstance(event, Delta) for entry in event.logprobs]
    found = expected(asked)
    wanted = [found.logprobs[at] for at in range(len(found.answer))]
    assert [entry.logprob for entry in entries] == pytest.approx(wanted, abs=1e-3)
    assert all(len(entry.top) == 2 for entry in entries)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_the_mask_token_is_never_filled_in(temperature: float, start_engine: StartEngine) -> None:
    engine = start_streaming(start_engine)
    asked = ask_for(
        prompt_of(21), 60, temperature=temperature, logit_bias=((MASK, 100.0), *NEVER_END), window_size=8
    )
    (answer,) = run(engine, [asked])
    assert len(answer) == 60
    assert MASK not in answer


def test_a_thinking_budget_holds_and_then_the_window_opens(start_engine: StartEngine) -> None:
    engine = start_streaming(start_engine)
    budget = ThinkingBudget(6, start=(9, 8), end=(11, 12), is_open=True)
    grammar = Grammar("any", "", thinking=budget)
    asked = dataclasses.replace(ask_for(prompt_of(21), 40, logit_bias=NEVER_END), grammar=grammar)
    finished = ask(engine, asked).finished()
    assert finished.tokens[4:6] == (11, 12)
    assert 6 < finished.usage.drafting.num_forwards < 40
    others = [ask_for(prompt_of(9 + i, i), 30, name=str(i)) for i in range(3)]
    assert run(engine, [*others, asked])[-1] == list(finished.tokens)


def test_a_draft_model_drafts_for_the_others_and_not_for_rows_with_windows(start_engine: StartEngine) -> None:
    loaded = make_window_model()
    of_model = {"load_draft": lambda _: loaded, "draft_type": "draft-model", "draft_model": "itself"}
    engine = start_streaming(start_engine, make_sources=no_lookups, **of_model)
    plain = [request(prompt_of(9 + 7 * i, i), 30, name=f"plain {i}", temperature=0.8) for i in range(2)]
    in_windows = [
        ask_for(prompt_of(8 + 9 * i, i), 30, name=f"windowed {i}", temperature=0.8) for i in range(2)
    ]
    answers = [ask(engine, one) for one in (*plain, *in_windows)]
    finished = [answer.finished() for answer in answers]
    assert [list(one.tokens) for one in finished[:2]] == [oracle(loaded, one) for one in plain]
    assert [list(one.tokens) for one in finished[2:]] == [expected(one).answer for one in in_windows]
    assert [bool(one.usage.drafting.num_accepted) for one in finished] == [True, True, False, False]


def test_steps_of_wide_windows_take_no_more_memory_than_was_estimated() -> None:
    loaded, own = make_window_model(), {"wedlm_window_size": 64, "prefix_cache_bytes": 0}
    room = Driven(loaded, **own).worker.queue.memory_budget.bytes_alone(300)
    needed = loaded.info.weight_bytes + 2 * room
    before = mx.get_active_memory() - loaded.info.weight_bytes
    driven = Driven(loaded, memory_bytes=needed, **own)
    mx.reset_peak_memory()
    for i in range(3):
        asked = ask_for(prompt_of(60 + i, i), 40, name=str(i), window_size=64, logit_bias=NEVER_END)
        driven.ask(asked)
    driven.finish()
    assert all(len(answer.finished().tokens) == 40 for answer in driven.answers.values())
    assert mx.get_peak_memory() - before <= needed


def test_a_cancelled_request_leaves_in_mid_window() -> None:
    driven = Driven(make_window_model())
    other = ask_for(prompt_of(30, 2), 30, name="other")
    answer, left = (
        driven.ask(other),
        driven.ask(ask_for(prompt_of(21), 60, name="left", logit_bias=NEVER_END)),
    )
    driven.step_until(lambda: any(one.num_answered > 5 for one in driven.worker.members))
    driven.worker.cancel("left")
    assert left.failed().kind == "cancelled"
    driven.finish()
    assert list(answer.finished().tokens) == expected(other).answer


def test_a_row_that_streams_costs_its_neighbors_none_of_their_slowdown_budget() -> None:
    asked = request(prompt_of(9), 20, name="plain", logit_bias=NEVER_END)
    liar = Liar({asked.prompt: oracle(make_window_model(), asked)}, VOCAB_SIZE, "suffix")
    driven = Driven(make_window_model(), lambda _: DraftSources({"suffix": liar}, scored(1.0)))
    driven.ask(dataclasses.replace(asked, draft=DraftChoice("suffix")))
    driven.ask(ask_for(prompt_of(21), 200, name="windowed", logit_bias=NEVER_END))
    driven.step_until(lambda: len(driven.worker.members) == 2)
    plain = next(one for one in driven.worker.members if not one.window)
    assert plain.drafts
    budget = plain.drafts.slowdown_budget
    spent_s, plain_s = budget.spent_s, budget.plain_s
    driven.step_until(lambda: plain.ended)
    assert budget.plain_s > plain_s
    assert budget.spent_s - spent_s <= budget.plain_s - plain_s + 1e-9


@pytest.mark.parametrize(("drafted", "spent_s"), [(1, 4.0), (17, 4.0), (32, 8.0)])
def test_neighbors_of_a_row_that_streams_are_charged_for_their_own_drafts_alone(
    drafted: int, spent_s: float
) -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 17): 4.0, (1, 32): 8.0}, is_learned=False)
    costs.batched = True
    budget = SlowdownBudget(0.02)
    window = Window(WindowSettings(0)).widen(16)
    outcomes = [
        Outcome(RowInput(1, 2, draft=[1] * (drafted - 1)), [1], [None], 1),
        Outcome(WindowInput(1, 2, window=window, pending=[1]), [1] * 3, [None] * 3, 1),
    ]
    Planner(costs).charge_verification([budget, None], USUAL, outcomes, 9.9)
    assert (budget.spent_s, budget.plain_s) == pytest.approx((spent_s, 4.0))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wedlm_decoding": "streaming"}, "--wedlm-decoding is for WeDLM models"),
        ({"wedlm_window_size": 8}, "--wedlm-window-size is for WeDLM models"),
        ({"wedlm_entropy_threshold": None}, "--wedlm-entropy-threshold is for WeDLM models"),
    ],
)
def test_another_model_refuses_the_settings_at_start(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        Driven(make_loaded("llama"), **settings)


def test_a_window_beyond_the_context_is_refused_at_start() -> None:
    with pytest.raises(ModelError, match="--wedlm-window-size 1024: the context has 1024 tokens"):
        Driven(make_window_model(), wedlm_window_size=1024)


def test_other_models_cannot_stream_and_a_wedlm_model_can() -> None:
    assert not Driven(make_loaded("llama")).loaded.info.can_decode_windows
    assert Driven(make_window_model()).loaded.info.can_decode_windows


def test_a_window_that_is_filled_everywhere_is_settled_and_followed_by_holes() -> None:
    settings = WindowSettings(MASK, window_size=3, entropy_threshold=1.0, pos_penalty_factor=0.0)
    window = Window(settings).widen(3)
    settled, rest = window.fill([7, 8, 9], [0.5, 0.1, 0.9], [None] * 3)
    assert [one.token for one in settled] == [7, 8, 9]
    assert rest.widen(3).holes == [0, 1, 2]


def test_a_window_gives_ranks_to_what_is_pending_then_filled_then_masked() -> None:
    window = Window(WindowSettings(MASK), (None, Filled(7), None, Filled(8)))
    assert window.tokens == [MASK, 7, MASK, 8]
    assert window.ranks(2) == [0, 1, 4, 2, 5, 3]


def test_the_least_uncertain_hole_is_filled_if_none_is_certain_enough() -> None:
    window = Window(
        WindowSettings(MASK, entropy_threshold=0.1, pos_penalty_factor=0.5), (None, None, Filled(4), None)
    )
    settled, rest = window.fill([7, 8, 9], [2.0, 1.4, 0.6], [None] * 3)
    assert not settled
    assert rest.places == (None, Filled(8), Filled(4), None)


def test_entropies_of_impossible_tokens_are_numbers() -> None:
    logits = mx.array([[0.0, 0.0, -mx.inf], [5.0, -mx.inf, -mx.inf]])
    assert find_entropies(logits, [0, 1], []).tolist() == pytest.approx([0.6931472, 0.0])


def test_settings_refuse_streaming_that_is_exact() -> None:
    with pytest.raises(SettingsError, match="wedlm_decoding is streaming"):
        Settings(wedlm_decoding="streaming", exact=True)
    with pytest.raises(SettingsError, match="wedlm_window_size is 0"):
        Settings(wedlm_window_size=0)
