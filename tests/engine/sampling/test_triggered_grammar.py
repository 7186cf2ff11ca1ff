"""Only calls are held to a grammar, from their first token on, whether steps run ahead or verify drafts."""

import dataclasses
import re

import pytest

from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.request import (
    DraftChoice,
    GenerationRequest,
    Grammar,
    ThinkingBudget,
    Trigger,
    WindowSettings,
)
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.sampling.matchers import make_matcher
from reprise.engine.speculative.costs.cost_table import GREEDY, MASKED, UNSEEN_S, CostTable, grid_up_to
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.text.tokenizer import Tokenizer
from tests.combinations import spread
from tests.drafters.fakes import scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven, loaded_once
from tests.engine.speculative.test_drafting import Scripted, run, sources
from tests.engine.support import make_tokenizer, prompt_of, request
from tests.engine.text.test_tokenizer import make_thinker

COLOR = re.compile(r"<tool_call> ?(red|green|blue)( [0-9]{2})?</tool_call>")


@pytest.fixture(scope="module")
def thinker() -> Tokenizer:
    return make_thinker()


@pytest.fixture(scope="module")
def grammars(thinker: Tokenizer) -> Grammars:
    return Grammars(thinker)


def calls_of(tokenizer: Tokenizer) -> Grammar:
    """The grammar of a call that names a color."""
    start, end = tokenizer.markers.call_start, tokenizer.markers.call_end
    assert start is not None
    assert end is not None
    color = '" "? ("red" | "green" | "blue") (" " /[0-9][0-9]/)?'
    text = f"start: <[{start.tokens[0]}]> {color} <[{end.tokens[0]}]>"
    return Grammar("lark", text, trigger=Trigger(start.tokens))


ANSWER = "Look: <tool_call>red 12</tool_call> and <tool_call>blue</tool_call>."


def test_text_is_free_and_a_call_is_not(thinker: Tokenizer, grammars: Grammars) -> None:
    matcher = make_matcher(grammars, calls_of(thinker), thinker)
    tokens = thinker.encode_answer(ANSWER)
    text = b""
    for token in tokens:
        is_call = text.count(b"<tool_call>") > text.count(b"</tool_call>")
        (mask,) = matcher.masks()
        assert (mask is not None, matcher.may_run_ahead) == (is_call, not is_call)
        assert mask is None or mask[token]
        assert matcher.is_complete is not is_call
        matcher.commit([token])
        text += thinker.piece(token)
    nope = thinker.encode_answer("no")[0]
    matcher.commit(tokens[: tokens.index(3) + 1])
    (mask,) = matcher.masks()
    assert mask is not None
    assert not mask[nope]


def test_a_draft_is_cut_in_a_call_and_at_its_end_only(thinker: Tokenizer, grammars: Grammars) -> None:
    tokens = thinker.encode_answer(ANSWER)
    wrong = thinker.encode_answer("Look: <tool_call>no")
    end = tokens.index(thinker.markers.call_end.tokens[0])
    matcher = make_matcher(grammars, calls_of(thinker), thinker)
    assert matcher.count_allowed(tokens[: end + 1]) == end + 1
    assert matcher.count_allowed(tokens) == end + 1
    assert matcher.count_allowed(wrong) == wrong.index(3) + 1
    masks = matcher.masks(tokens[: end + 1])
    start = tokens.index(thinker.markers.call_start.tokens[0])
    assert [mask is None for mask in masks] == [True] * (start + 1) + [False] * (end - start) + [True]
    # All at once is as one by one, and more than one call too.
    matcher.commit(tokens)
    assert matcher.may_run_ahead


def test_a_budget_for_the_thought_is_kept_beside_it(thinker: Tokenizer, grammars: Grammars) -> None:
    markers = thinker.markers
    budget = ThinkingBudget(3, markers.think_start.tokens, markers.think_end.tokens, is_open=True)
    matcher = make_matcher(grammars, dataclasses.replace(calls_of(thinker), thinking=budget), thinker)
    hm = thinker.encode_answer("hm")[0]
    given = []
    for wish in [hm] * 4 + thinker.encode_answer(ANSWER):
        (mask,) = matcher.masks()
        token = wish if mask is None or mask[wish] else int(mask.argmax())
        assert matcher.may_run_ahead == (len(given) > 2 and mask is None)
        matcher.commit([token])
        given.append(token)
    assert given[:4] == [hm, hm, markers.think_end.tokens[0], hm]
    assert given[4:] == thinker.encode_answer(ANSWER)


def test_a_window_has_no_grammar_of_calls(thinker: Tokenizer, grammars: Grammars) -> None:
    one = dataclasses.replace(request(prompt_of(9, 1), 8), grammar=grammars.compile(calls_of(thinker)))
    windowed = dataclasses.replace(one, window_settings=WindowSettings(mask_token=5))
    matchers = [Sequence.of(each, lambda _: None, thinker, grammars).matcher for each in (one, windowed)]
    assert [matcher is None for matcher in matchers] == [False, True]


def test_a_grammar_costs_where_it_masks(thinker: Tokenizer, grammars: Grammars) -> None:
    """Else a step within a call would be compared with steps that run ahead, of which a call has none."""
    one = dataclasses.replace(request(prompt_of(9, 1), 60), grammar=grammars.compile(calls_of(thinker)))
    sequence = Sequence.of(one, lambda _: None, thinker, grammars)
    assert sequence.matcher
    classes = []
    for token in thinker.encode_answer(ANSWER):
        classes.append(sequence.sampling)
        assert (sequence.sampling == MASKED) is not sequence.matcher.may_run_ahead
        sequence.matcher.commit([token])
    assert set(classes) == {GREEDY, MASKED}
    whole = dataclasses.replace(one, grammar=Grammar("regex", "a"))
    assert Sequence.of(whole, lambda _: None, thinker, grammars).sampling == MASKED


TEXT_CALL = re.compile(r"aab ?(red|green|blue)( [0-9]{2})?;")
BY_TEXT = Grammar(
    "lark",
    'start: to_call " "? ("red" | "green" | "blue") (" " /[0-9][0-9]/)? ";"\n'
    'to_call[lazy]: /(.|\\n)*/ "aab"\n',
    trigger=Trigger(text="aab"),
)


def test_a_text_begins_a_call_however_it_is_written(thinker: Tokenizer, grammars: Grammars) -> None:
    grammar = grammars.compile(BY_TEXT)
    # Rows of such a model run ahead without masks, as no token brings the whole text.
    assert grammar.trigger == BY_TEXT.trigger
    a, b, x, space = (thinker.encode_answer(letter)[0] for letter in "abx ")
    matcher = make_matcher(grammars, grammar, thinker)
    for token in [x, a, x, a, a, a, b]:
        matcher.commit([token])
        (mask,) = matcher.masks()
        assert (mask is None, matcher.may_run_ahead) == (token != b, token == x)
    assert mask is not None
    assert mask[space]
    assert not mask[x]
    # A draft may begin within the text.
    matcher = make_matcher(grammars, grammar, thinker)
    matcher.commit([x, a, a])
    assert matcher.count_allowed([b, space, x]) == 2
    assert [mask is None for mask in matcher.masks([b, space])] == [True, False, False]


LETTERS = [make_tokenizer().encode_answer(letter)[0] for letter in "ab"]
SAMPLINGS = {
    "by text": {"temperature": 4.0, "seed": 5, "logit_bias": tuple((one, 100.0) for one in LETTERS)},
    "greedy": {"logit_bias": ((3, 30.0),)},
    "sampled": {"temperature": 0.9, "seed": 5, "logit_bias": ((3, 15.0),)},
    "filtered": {"temperature": 0.9, "seed": 7, "top_p": 0.8, "top_k": 40, "logit_bias": ((3, 15.0),)},
    "penalised": {"temperature": 0.9, "seed": 9, "presence_penalty": 0.5, "logit_bias": ((3, 15.0),)},
}


def test_within_a_call_drafts_begin_though_no_step_ran_ahead_before() -> None:
    tokenizer, loaded = make_tokenizer(), loaded_once("llama")
    start, end = tokenizer.markers.call_start, tokenizer.markers.call_end
    assert start
    assert end
    grammar = Grammar(
        "lark", f"start: <[{start.tokens[0]}]> /[a-z ]+/ <[{end.tokens[0]}]>", trigger=Trigger(start.tokens)
    )
    # The prompt has begun the call, and what ends it is unlikely.
    prompt, bias = [*prompt_of(20), start.tokens[0]], ((end.tokens[0], -100.0),)
    one = dataclasses.replace(request(prompt, 200, logit_bias=bias), grammar=grammar)
    plain = Driven(loaded, draft_type="none")
    expected = plain.ask(one)
    plain.finish()
    tokens = list(expected.finished().tokens)
    costs = StepCosts(CostTable({(1, 1): UNSEEN_S}, [1], grid_up_to((1, 2, 4, 8, 16), 16)))
    drafts = sources(Scripted({one.prompt: tokens}, 1.0))
    drafting = Driven(loaded, make_sources=drafts, draft_type="suffix", costs=costs)
    answer = drafting.ask(one)
    drafting.finish()
    end_event = answer.finished()
    assert list(end_event.tokens) == tokens
    assert end_event.usage.drafting.num_accepted > 0


def asked(number: int, how: str) -> GenerationRequest:
    one = request(prompt_of(10 + 7 * number, number), 40, name=f"{how}-{number}", **SAMPLINGS[how])
    return dataclasses.replace(one, grammar=BY_TEXT if how == "by text" else calls_of(make_tokenizer()))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *spread(["llama", "gemma3_text", "mamba2"], list(SAMPLINGS)[1:]),
        pytest.param("llama", "by text"),
        pytest.param("mamba2", "by text", marks=pytest.mark.slow),
    ],
)
def test_calls_are_of_the_grammar_whether_steps_run_ahead_or_verify_drafts(
    name: str, how: str, start_engine: StartEngine
) -> None:
    requests = [asked(number, how) for number in range(3)]
    plain = [dataclasses.replace(one, draft=DraftChoice("none")) for one in requests]
    engine = start_engine(name, make_sources=lambda _: DraftSources({}, scored(1.0)))
    alone = [run(engine, [one])[0] for one in plain]
    decode = make_tokenizer().decode
    end, start, call = (";", "aab", TEXT_CALL) if how == "by text" else ("</tool_call>", "<tool_call>", COLOR)
    texts = ["".join(decode(tokens).rpartition(end)[:2]) for tokens in alone]
    assert [text.count(start) for text in texts] == [len(call.findall(text)) for text in texts]
    assert sum(text.count(start) for text in texts) > 2
    assert run(engine, plain) == alone
    assert run(engine, requests) == alone
    answers = {one.prompt: tokens for one, tokens in zip(requests, alone, strict=True)}
    other = start_engine(name, make_sources=sources(Scripted(answers, 0.7)), draft_type="suffix")
    assert run(other, requests) == alone
    assert [one.counts().num_failed_steps for one in (engine, other)] == [0, 0]
