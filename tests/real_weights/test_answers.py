"""Real models answer what mlx_lm's own loop answers, token for token, with drafts and without."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from mlx_lm import load, stream_generate

from reprise.bench.local_engine import LocalEngine
from reprise.bench.workloads.chats import render
from reprise.config.settings import Settings
from reprise.engine.generating.setup import flat_costs
from reprise.engine.interface.events import Finished
from reprise.engine.interface.request import DraftChoice
from tests.engine.support import request
from tests.real_weights.packages import FETCHED_WITHIN_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FETCHED_WITHIN_S + 200)]

NUM_TOKENS = 30
CALL = (
    "At a quarter past nine the schooner Amelia passed the northern reef under reefed sails and signalled "
    'that all hands were well."'
)
QUOTE = f'The keeper wrote in his log: "{CALL}\n\nThe log was read aloud. Word for word: "{CALL[:26]}'
CODE = """def area_of_square(side):
    return side * side


def area_of_circle(radius):
    return math.pi * radius * radius


def area_of_rectangle(width, height):
    return"""
CHAT = "What is the capital of France, and which river runs through it?"
PROMPTS = {"quote": QUOTE, "code": CODE, "chat": CHAT}


@pytest.fixture(scope="module", params=["smollm2_folder", "gemma3_folder"])
def local(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    """An engine with one of the models, for which every draft pays."""
    folder = request.getfixturevalue(request.param)
    with LocalEngine(Settings(model=str(folder), prefix_cache_bytes=0), flat_costs()) as local:
        yield local


def prompt_of(local: LocalEngine, name: str) -> tuple[int, ...]:
    tokenizer = local.engine.tokenizer
    if name == "chat" and tokenizer.has_chat_template:
        return render(tokenizer, CHAT)
    return tuple(tokenizer.encode(PROMPTS[name]))


@cache
def plain_answer(folder: str, prompt: tuple[int, ...]) -> list[int]:
    """Return what mlx_lm's loop answers."""
    model, tokenizer = load(folder)[:2]
    steps = stream_generate(model, tokenizer, list(prompt), max_tokens=NUM_TOKENS)
    return [step.token for step in steps]


def answer(local: LocalEngine, name: str, draft: DraftChoice) -> Finished:
    """Answer without what the drafters have learnt from other answers."""
    local.engine.table.reset()
    return local.answer([replace(request(prompt_of(local, name), NUM_TOKENS), draft=draft)])[0]


@pytest.mark.parametrize("draft", ["none", "auto"])
@pytest.mark.parametrize("name", PROMPTS)
def test_the_tokens_are_those_of_mlx_lms_loop(local: LocalEngine, name: str, draft: str) -> None:
    answered = answer(local, name, DraftChoice(draft))
    assert list(answered.tokens) == plain_answer(local.engine.settings.model, prompt_of(local, name))


def test_a_quote_takes_less_than_half_the_steps(local: LocalEngine) -> None:
    drafting = answer(local, "quote", DraftChoice("auto")).usage.drafting
    assert drafting.num_forwards < NUM_TOKENS / 2


def test_the_models_speak_of_what_they_are_asked(local: LocalEngine) -> None:
    answered = answer(local, "chat", DraftChoice("auto"))
    assert "The capital of France is Paris" in local.engine.tokenizer.decode(answered.tokens)
