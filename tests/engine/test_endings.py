"""Where an answer may end is part of sampling: the same with drafts as without, alone and in a batch."""

from dataclasses import replace
from typing import Any

import pytest

from reprise.engine.interface.events import Delta
from reprise.engine.interface.request import GenerationRequest, Grammar
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import Coin, scored
from tests.engine.conftest import StartEngine
from tests.engine.support import ask, make_loaded, make_tokenizer, oracle, prompt_of, request

EOS = min(make_tokenizer().eos_ids)
LIKELY_END = {"logit_bias": ((EOS, 8.0), (100, 7.0), (101, 7.0)), "temperature": 0.8, "seed": 3}
"""Sampling that would end an answer after a few tokens."""
ENDINGS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "as-usual": ({}, ()),
    "min-tokens": ({"min_tokens": 9}, ()),
    "ignore-eos": ({"ignores_eos": True}, ()),
    "stop-tokens": ({}, (100,)),
    "stop-tokens-late": ({"min_tokens": 12, "ignores_eos": True}, (100, 101)),
    "allowed": ({"allowed": (EOS, 100, 200, 300)}, ()),
    "allowed-late": ({"allowed": (EOS, 100, 200, 300), "min_tokens": 7}, (300,)),
}


def asked(name: str, number: int = 0, **more: Any) -> GenerationRequest:
    sampling, stop_tokens = ENDINGS[name]
    one = request(prompt_of(20 + number, number), 30, name=f"{name}-{number}", **LIKELY_END, **sampling)
    return replace(one, stop_tokens=stop_tokens, **more)


@pytest.mark.parametrize("chance", [None, 1.0, 0.5, 0.0])
def test_where_an_answer_ends_does_not_depend_on_drafts_or_neighbours(
    chance: float | None, start_engine: StartEngine
) -> None:
    loaded = make_loaded("llama")
    all_asked = [asked(name, number) for number, name in enumerate(ENDINGS)]
    wanted = {one.prompt: oracle(loaded, one) for one in all_asked}
    drafter = None if chance is None else Coin(wanted, chance, num_ids=4096, name="suffix")
    engine = start_engine(
        make_sources=drafter and (lambda _: DraftSources({"suffix": drafter}, scored(1.0))),
        max_stall_ms=0,
        draft_type="suffix" if drafter else "none",
    )
    answers = [(one, ask(engine, one)) for one in all_asked]
    for one, answer in answers:
        assert list(answer.finished().tokens) == wanted[one.prompt]
    assert drafter is None or drafter.num_verified > 0
    by_name = {one.id.rpartition("-")[0]: wanted[one.prompt] for one in all_asked}
    assert len(by_name["as-usual"]) < 9 <= len(by_name["min-tokens"]) - 1
    assert len(by_name["ignore-eos"]) == 30
    assert by_name["stop-tokens"][-1] in (100, EOS)
    assert len(by_name["stop-tokens-late"]) > 12
    assert set(by_name["allowed"]) <= {EOS, 100, 200, 300}


def test_a_token_that_ends_an_answer_has_no_text(start_engine: StartEngine) -> None:
    engine, one = start_engine(), asked("stop-tokens-late")
    answer = ask(engine, one)
    end = answer.finished()
    assert end.reason == "stop"
    assert end.tokens[-1] in (100, 101)
    assert answer.text == engine.tokenizer.decode(end.tokens[:-1])
    assert end.usage.num_completion_tokens == len(end.tokens)


def test_stop_strings_are_not_looked_for_before_the_least_number_of_tokens(
    start_engine: StartEngine,
) -> None:
    engine = start_engine()
    free = ask(engine, request(prompt_of(9), 30, ignores_eos=True)).finished()
    piece = next(
        text for token in free.tokens[2:] if len(text := engine.tokenizer.decode([token]).strip()) > 1
    )
    early = ask(engine, request(prompt_of(9), 30, (piece,), ignores_eos=True)).finished()
    late = ask(engine, request(prompt_of(9), 30, (piece,), ignores_eos=True, min_tokens=30)).finished()
    assert len(early.tokens) < 30
    assert late.tokens == free.tokens


@pytest.mark.parametrize("fields", [{"ignores_eos": True}, {"min_tokens": 25}, {"allowed": (7,)}])
def test_a_grammar_that_has_ended_may_end_the_answer(
    fields: dict[str, Any], start_engine: StartEngine
) -> None:
    engine = start_engine()
    grammar = Grammars(engine.tokenizer).compile(Grammar("regex", "[ab]{2,5}"))
    answer = ask(engine, replace(request(prompt_of(9), 30, **fields), grammar=grammar))
    assert answer.finished().tokens[-1] == EOS
    assert 2 <= len(answer.text) <= 5


@pytest.mark.parametrize("cached", [False, True])
def test_progress_and_usage_are_reported_only_if_asked_for(start_engine: StartEngine, cached: bool) -> None:
    engine = start_engine(prefill_chunk_tokens=16)
    quiet = request(prompt_of(90), 6)
    plain = ask(engine, quiet)
    plain.finished()
    assert not any(isinstance(e, Delta) and (e.progress or e.usage) for e in plain.events)
    prompt = quiet.prompt if cached else tuple(prompt_of(90, 5))
    told = ask(engine, replace(quiet, prompt=prompt, reports_progress=True, reports_usage=True))
    end = told.finished()
    deltas = [event for event in told.events if isinstance(event, Delta)]
    progress = [delta.progress for delta in deltas if delta.progress]
    done = [one.num_processed for one in progress]
    assert done == sorted(set(done))
    assert (done[0], done[-1]) == (end.usage.num_cached_tokens, 90)
    assert len(done) == (2 if cached else 8)
    assert {(one.num_tokens, one.num_cached) for one in progress} == {(90, end.usage.num_cached_tokens)}
    counts = [delta.usage.num_completion_tokens for delta in deltas if delta.usage]
    assert counts == sorted(counts)
    assert len(counts) >= 4
    assert [e.text for e in deltas if e.text] == [
        e.text for e in plain.events if isinstance(e, Delta)
    ] or not cached


def test_where_a_grammar_allows_only_forbidden_tokens_the_likeliest_is_chosen(
    start_engine: StartEngine,
) -> None:
    engine = start_engine()
    grammar = Grammars(engine.tokenizer).compile(Grammar("regex", "[a-z]{8}"))
    free, narrow = (
        ask(engine, replace(request(prompt_of(9), 30, **fields), grammar=grammar)).finished().tokens
        for fields in ({}, {"allowed": (7,)})
    )
    assert narrow == free
