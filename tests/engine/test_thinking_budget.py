"""The engine forces the end of a thought at its budget, with drafts as without."""

import pytest

from reprise.drafters.suffix import SuffixDrafter
from reprise.engine.interface.request import GenerationRequest, Grammar, Sampling, ThinkingBudget
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.driven import Driven, expected_tokens, loaded_once

PROMPT = tuple(range(5, 25)) * 3
END = (7, 9)


def ask(num_tokens: int) -> GenerationRequest:
    budget = ThinkingBudget(num_tokens, (), END, is_open=True)
    grammar = Grammar("any", "", thinking=budget, compiled="any")
    return GenerationRequest(f"budget-{num_tokens}", PROMPT, 30, Sampling(seed=1), grammar=grammar)


@pytest.mark.parametrize("num_tokens", [2, 3, 9])
def test_the_end_marker_stands_at_the_budget_and_the_answer_follows_from_it(num_tokens: int) -> None:
    plain = expected_tokens("llama", GenerationRequest("plain", PROMPT, 30, Sampling(seed=1)))
    found = []
    for make_sources in (
        None,
        lambda _: DraftSources({"ngram-simple": SuffixDrafter(0, name="ngram-simple")}, scored(1.0)),
    ):
        driven = Driven(loaded_once("llama"), make_sources)
        answer = driven.ask(ask(num_tokens))
        driven.finish()
        found.append(list(answer.finished().tokens))
    first, second = found
    assert first == second
    assert tuple(first[num_tokens - 2 : num_tokens]) == END
    assert first[: num_tokens - 2] == plain[: num_tokens - 2]
    after = GenerationRequest("after", (*PROMPT, *first[:num_tokens]), 30 - num_tokens, Sampling(seed=1))
    assert first[num_tokens:] == expected_tokens("llama", after)
