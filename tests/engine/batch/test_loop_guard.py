"""An answer that only repeats itself ends, where its tokens say so, whatever was drafted; no table does."""

import random
from base64 import b64encode
from dataclasses import replace

import pytest

from reprise.engine.batch.sequence import ends_in_loop
from reprise.engine.interface.request import GenerationRequest, Grammar
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import Coin, scored
from tests.engine.conftest import StartEngine
from tests.engine.support import ask, make_loaded, make_tokenizer, oracle, prompt_of, request

DEFAULT = 2048
SAMPLINGS = {
    "greedy": {"logit_bias": ((100, 1000.0),)},
    "sampled": {"logit_bias": ((100, 1000.0),), "temperature": 0.8, "seed": 3},
}
"""Sampling that says one token again and again."""


def end_of(answer: list[int], num_tokens: int = DEFAULT) -> int | None:
    """Return the length at which the guard would end an answer."""
    return next((n for n in range(1, len(answer) + 1) if ends_in_loop(answer[:n], n, num_tokens)), None)


def end_by_definition(answer: list[int], num_tokens: int) -> int | None:
    """Do the same without any cleverness."""
    for length in range(1, len(answer) + 1):
        for window in (num_tokens * 2**level for level in range(20)):
            if window > length or length % (window // 8):
                continue
            tail = answer[length - window : length]
            if any(tail[period:] == tail[:-period] for period in range(1, window // 8 + 1)):
                return length
    return None


@pytest.mark.parametrize("seed", range(30))
def test_it_ends_an_answer_where_its_definition_says(seed: int) -> None:
    source = random.Random(seed)
    answer = [source.randrange(3) for _ in range(source.randrange(200))]
    answer += [source.randrange(3) for _ in range(source.randrange(1, 40))] * 40
    assert end_of(answer, 64) == end_by_definition(answer, 64)


@pytest.mark.parametrize(("period", "length"), [(1, 2304), (3, 2304), (256, 2304), (257, 4608), (700, 9216)])
def test_a_period_of_any_length_is_a_loop_after_eight_times_and_2048_tokens(period: int, length: int) -> None:
    # 100 tokens of something new come first.
    assert end_of([*range(1000, 1100), *list(range(period)) * (12000 // period)]) == length


def texts_that_go_on() -> dict[str, str]:
    words = [f"{'aeiou'[i % 5]}{'bcdfgklmnprst'[i % 13]}o" for i in range(97)]
    return {
        "list": "\n".join(f"{i}. The item has no name." for i in range(1, 600)),
        "table": "\n".join(f"| {words[i % 97]} {i} | 0 | 0 | 0 | 0 | 0 | 0 |" for i in range(400)),
        "a thousand zeros": "0, " * 700,
        "base64 of zeros": b64encode(bytes(1200)).decode(),
        "base64": b64encode(random.Random(1).randbytes(4000)).decode(),
        "counting": " ".join(map(str, range(3000))),
        "rule": "\n".join("-" * 80 for _ in range(20)),
    }


@pytest.mark.parametrize("name", texts_that_go_on())
def test_no_list_table_or_base64_is_a_loop(name: str) -> None:
    tokens = make_tokenizer().encode(texts_that_go_on()[name])
    assert end_of(list(tokens)) is None


def looping(how: str, number: int = 0, max_tokens: int = 300) -> GenerationRequest:
    one = request(prompt_of(20 + number, number), max_tokens, name=f"{how}-{number}", **SAMPLINGS[how])
    return replace(one, loop_guard_tokens=64)


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("chance", [None, 1.0, 0.5, 0.0])
def test_where_it_ends_an_answer_does_not_depend_on_drafts(
    how: str, chance: float | None, start_engine: StartEngine
) -> None:
    loaded, all_asked = make_loaded("llama"), [looping(how, number) for number in range(2)]
    wanted = {one.prompt: oracle(loaded, replace(one, max_tokens=100)) for one in all_asked}
    drafter = None if chance is None else Coin(wanted, chance, num_ids=4096, name="suffix")
    engine = start_engine(
        make_sources=drafter and (lambda _: DraftSources({"suffix": drafter}, scored(1.0))),
        max_stall_ms=0,
        draft_type="suffix" if drafter else "none",
    )
    for answer in [ask(engine, one) for one in all_asked]:
        end = answer.finished()
        assert end.tokens == (100,) * 64
        assert (end.reason, end.usage.is_loop) == ("stop", True)
    assert drafter is None or drafter.num_verified > 0


@pytest.mark.parametrize("change", [{"loop_guard_tokens": 0}, {"ignores_eos": True}, {"min_tokens": 290}])
def test_it_obeys_a_request_that_wants_no_such_end(change: dict[str, int], start_engine: StartEngine) -> None:
    one = looping("greedy")
    where = (
        replace(one, **change)
        if "loop_guard_tokens" in change
        else replace(one, sampling=replace(one.sampling, **change))
    )
    end = ask(start_engine(), where).finished()
    assert len(end.tokens) == (296 if "min_tokens" in change else 300)
    assert (end.reason, end.usage.is_loop) == (
        ("stop", True) if "min_tokens" in change else ("length", False)
    )


@pytest.mark.parametrize(("regex", "reason"), [("(.|\n)*END", "length"), ("(.|\n)*", "stop")])
def test_a_loop_before_the_end_of_a_grammar_is_cut_off(
    regex: str, reason: str, start_engine: StartEngine
) -> None:
    one = replace(looping("greedy"), grammar=Grammar("regex", regex))
    # The other token is no text of its own.
    (letter,) = make_tokenizer().encode_answer("H")
    one = replace(one, sampling=replace(one.sampling, logit_bias=((letter, 1000.0),)))
    end = ask(start_engine(), one).finished()
    assert (end.reason, end.usage.is_loop, len(end.tokens)) == (reason, True, 64)
