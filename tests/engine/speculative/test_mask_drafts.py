"""A WeDLM model that drafts for itself never changes the answer, and feeds masks only where they pay."""

import dataclasses
import itertools
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.engine import Engine
from reprise.engine.interface.request import DraftChoice, DraftType, GenerationRequest
from reprise.engine.sampling.grammar import Grammar, Grammars
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import DraftEstimate
from reprise.engine.speculative.mask_drafts import add_masks, mask_values
from reprise.engine.speculative.proposers import DraftSources
from tests.combinations import spread
from tests.drafters.fakes import scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven
from tests.engine.foreseeing import MASK, Foreseeing, foreseeing, no_lookups
from tests.engine.speculative.test_drafting import Scripted
from tests.engine.support import VOCAB_SIZE, ask, make_loaded, oracle, prompt_of, request

TEMPERATURES = [0.0, 0.8]


def requests(temperature: float, kind: DraftType = "wedlm", **sampling: Any) -> list[GenerationRequest]:
    lengths = [3, 40, 17, 90, 8, 25]
    return [
        dataclasses.replace(
            request(prompt_of(n, i), 20 + 4 * i, name=str(i), temperature=temperature, seed=i, **sampling),
            draft=DraftChoice(kind),
        )
        for i, n in enumerate(lengths)
    ]


def run(engine: Engine, asked: list[GenerationRequest]) -> list[list[int]]:
    answers = [ask(engine, one) for one in asked]
    return [list(answer.finished().tokens) for answer in answers]


@pytest.mark.parametrize(
    ("share", "temperature"), spread({"right": 1.0, "wrong": 0.0, "some": 0.8}, TEMPERATURES)
)
def test_masks_never_change_the_tokens(share: float, temperature: float, start_engine: StartEngine) -> None:
    loaded, asked = foreseeing(share), requests(temperature)
    engine = start_engine(load=lambda _: loaded, make_sources=no_lookups, draft_type="wedlm")
    expected = [oracle(loaded, one) for one in asked]
    alone = ask(engine, asked[3]).finished()
    assert list(alone.tokens) == expected[3]
    assert run(engine, asked) == expected
    drafting = alone.usage.drafting
    assert drafting.gate_decision == "wedlm"
    if share == 1.0:
        assert [name for name, *_ in drafting.by_source] == ["wedlm"]
        assert len(alone.tokens) > 3 * drafting.num_forwards


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_rows_of_all_kinds_share_a_batch(temperature: float, start_engine: StartEngine) -> None:
    loaded, kinds = foreseeing(), ("none", "wedlm", "suffix", "auto")
    asked = [
        dataclasses.replace(one, draft=DraftChoice(kind), id=f"{number} {kind}")
        for number, kind in enumerate(kinds * 2)
        for one in requests(temperature)[number % 3 :: 3]
    ]
    expected = {one.prompt: oracle(loaded, one) for one in requests(temperature)}
    drafter = Scripted(expected, 0.8, silence=0.5)
    engine = start_engine(
        load=lambda _: loaded,
        make_sources=lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        max_rows=3,
        max_stall_ms=0,
    )
    answers = [ask(engine, one) for one in asked]
    sources = set()
    for one, answer in zip(asked, answers, strict=True):
        finished = answer.finished()
        assert list(finished.tokens) == expected[one.prompt], one.id
        sources |= {source for source, _ in finished.usage.drafting.origins}
    assert sources == {"model", "wedlm", "suffix"}


@pytest.mark.parametrize(
    "more",
    [
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.3},
        {"top_p": 0.8, "top_k": 20},
        {"logit_bias": ((MASK, 100.0), (17, 3.0))},
        {"min_tokens": 10},
    ],
    ids=lambda more: "-".join(more),
)
def test_masks_change_nothing_however_tokens_are_sampled(
    more: dict[str, Any], start_engine: StartEngine
) -> None:
    loaded = foreseeing()
    engine = start_engine(load=lambda _: loaded, make_sources=no_lookups)
    asked = requests(0.8, **more)
    plain = run(engine, requests(0.8, "none", **more))
    assert run(engine, asked) == plain
    assert not any(MASK in tokens for tokens in plain)


def test_masks_change_nothing_with_quantized_keys_and_values(start_engine: StartEngine) -> None:
    engine = start_engine(load=lambda _: foreseeing(), make_sources=no_lookups, kv_bits=8)
    assert run(engine, requests(0.8)) == run(engine, requests(0.8, "none"))
    assert ask(engine, requests(0.8)[3]).finished().usage.drafting.num_accepted > 0


def test_log_probabilities_are_those_of_plain_decoding(start_engine: StartEngine) -> None:
    engine = start_engine(load=lambda _: foreseeing(), make_sources=no_lookups)
    found = {}
    for kind in ("none", "wedlm"):
        one = dataclasses.replace(requests(0.8, kind)[2], top_logprobs=3)
        events = (answer := ask(engine, one)).events
        assert answer.finished()
        found[kind] = [entry for event in events for entry in getattr(event, "logprobs", ())]
    assert len(found["none"]) == len(found["wedlm"])
    for plain, drafted in zip(found["none"], found["wedlm"], strict=True):
        assert [token for token, *_ in plain.top] == [token for token, *_ in drafted.top]
        assert plain.logprob == pytest.approx(drafted.logprob, abs=1e-4)


def test_a_mask_token_in_a_prompt_has_a_log_probability_that_json_can_say(start_engine: StartEngine) -> None:
    engine = start_engine(load=lambda _: foreseeing(), make_sources=no_lookups)
    one = request([5, 6, MASK, 7], 2)
    answer = ask(engine, dataclasses.replace(one, top_logprobs=0, prompt_logprobs=True))
    answer.finished()
    entries = [entry for event in answer.events for entry in getattr(event, "logprobs", ())]
    assert [entry.logprob == -9999.0 for entry in entries[:4]] == [False, False, True, False]


@pytest.mark.parametrize("draft_type", ["none", "wedlm"])
def test_the_mask_token_is_never_drawn(draft_type: DraftType, start_engine: StartEngine) -> None:
    engine = start_engine(load=lambda _: foreseeing(), make_sources=no_lookups, draft_type=draft_type)
    asked = [request(prompt_of(9), 60, name=str(s), temperature=2.0, seed=s) for s in range(4)]
    assert not any(MASK in tokens for tokens in run(engine, asked))


def test_a_step_with_masks_is_one_forward() -> None:
    loaded = foreseeing()
    driven = Driven(loaded, no_lookups, draft_type="wedlm")
    answers = [driven.ask(one) for one in requests(0.0)[:3]]
    driven.step_until(lambda: len(driven.worker.members) == 3)
    for _ in range(6):
        before = loaded.model.num_forwards
        driven.worker.step()
        assert loaded.model.num_forwards == before + 1
    driven.finish()
    assert all(answer.finished() for answer in answers)


def test_masks_that_cost_as_much_as_steps_are_not_fed(start_engine: StartEngine) -> None:
    costs = StepCosts({(1, width): float(width) for width in (1, 2, 4, 8, 16, 32)}, is_learned=False)
    engine = start_engine(load=lambda _: foreseeing(1.0), make_sources=no_lookups, costs=costs)
    finished = ask(engine, requests(0.0)[3]).finished()
    assert finished.usage.drafting.num_drafted == 0
    assert finished.usage.drafting.num_forwards == len(finished.tokens)


def test_grammars_and_stop_strings_end_answers_where_they_do_without_masks(start_engine: StartEngine) -> None:
    engine = start_engine(load=lambda _: foreseeing(), make_sources=no_lookups)
    grammar = Grammars(engine.tokenizer).compile(Grammar("regex", "([a-z]+ ){8}[0-9]{2,6}"))
    text = engine.tokenizer.decode(oracle(foreseeing(), requests(0.0)[3])[6:9])
    found: dict[DraftType, list[tuple[int, ...]]] = {"none": [], "wedlm": []}
    for kind, answers in found.items():
        constrained, stopped = (requests(temperature, kind)[3] for temperature in TEMPERATURES)
        asked = [dataclasses.replace(constrained, grammar=grammar), dataclasses.replace(stopped, stop=("e",))]
        asked.append(dataclasses.replace(requests(0.0, kind)[3], stop=(text,), id="stopped"))
        answers += [one.finished().tokens for one in [ask(engine, each) for each in asked]]
    assert found["none"] == found["wedlm"]
    assert len(found["none"][2]) < len(oracle(foreseeing(), requests(0.0)[3]))


def test_what_masks_leave_behind_is_not_in_the_prefix_cache(start_engine: StartEngine) -> None:
    loaded, first = foreseeing(), requests(0.8)[3]
    engine = start_engine(load=lambda _: loaded, make_sources=no_lookups)
    cold = ask(engine, first).finished()
    follow_up = dataclasses.replace(first, prompt=(*first.prompt, *cold.tokens, *prompt_of(9, 5)))
    warm = ask(engine, follow_up).finished()
    assert warm.usage.num_cached_tokens >= len(first.prompt) + len(cold.tokens) - 1
    assert list(warm.tokens) == oracle(loaded, follow_up)


def test_in_exact_mode_masks_count_as_width(start_engine: StartEngine) -> None:
    widths: list[int] = []

    class Inexact(Foreseeing):
        """Differs at widths above 5."""

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            widths.append(tokens.shape[1])
            logits = super().__call__(tokens, cache)
            return logits + 0.01 * mx.arange(VOCAB_SIZE) * (5 < tokens.shape[1] < 33)

    loaded = make_loaded("llama", lambda model: Inexact(model, 0.8))
    loaded = dataclasses.replace(loaded, info=dataclasses.replace(loaded.info, mask_token_id=MASK))
    costs = StepCosts({(1, width): 1.0 for width in (1, 2, 3, 4, 5, 8, 16)}, is_learned=False)
    engine = start_engine(load=lambda _: loaded, make_sources=no_lookups, costs=costs, exact=True, max_rows=1)
    asked = requests(0.8)[0]
    widths.clear()
    assert list(ask(engine, asked).finished().tokens) == oracle(foreseeing(), asked)
    assert 1 < max(widths[1:]) <= 5


def test_wedlm_drafts_need_a_wedlm_model(start_engine: StartEngine) -> None:
    with pytest.raises(Exception, match="--draft-type wedlm is for WeDLM models; llama is none"):
        start_engine(make_sources=no_lookups, draft_type="wedlm")


def simulate(rates: list[float], masks: int, again: bool, step_s: Any) -> float:
    """Return the tokens per second of steps with as many masks, by the chances of the states.

    again: whether steps with drafts feed masks too.
    """
    tokens = taken_s = 0.0
    # The shares of steps that begin with drafts, and without.
    drafted, bare = 0.0, 1.0
    for _ in range(2000):
        right = list(itertools.accumulate(rates[: masks - 1], lambda a, b: a * b))
        tokens += bare + drafted * (1 + sum(right))
        taken_s += bare * step_s(1 + masks) + drafted * step_s(2 * masks if again else masks)
        kept = drafted * right[-1] * again
        drafted, bare = bare + kept, drafted - kept
    return tokens / taken_s


@pytest.mark.parametrize("slope", [0.0, 0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("rate", [0.2, 0.7, 0.95])
def test_masks_are_worth_what_they_save_in_the_long_run(slope: float, rate: float) -> None:
    def step_s(width: int) -> float:
        return 1.0 + slope * (width - 1)

    rates = [rate] * 7
    values = mask_values(rates, step_s)
    assert len(values) == 9
    assert values == sorted(values)
    # A step of masks alone promises the speed of the best cycle, if that exceeds plain decoding's.
    best = max(simulate(rates, masks, again, step_s) for masks in range(2, 9) for again in (0, 1))
    promised = max((1 + values[masks]) / step_s(1 + masks) for masks in range(2, 9))
    if best > 1:
        assert promised == pytest.approx(best, rel=1e-3)
    else:
        assert promised <= 1


def test_masks_stand_behind_the_part_of_a_draft_that_is_likely_right() -> None:
    draft = DraftEstimate((1.0, 1.9, 1.95))
    values = [0.0, 0.0, 1.0, 1.5]
    found = add_masks(draft, values, 4)
    assert found.splits == [0, 1, 0, 1, 1]
    assert found.expected == pytest.approx([1.0, 1.9, 2.0, 1.9 + 0.9 * 1.0, 1.9 + 0.9 * 1.5])
