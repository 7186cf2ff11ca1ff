"""Whatever happens to a batch with images, every family gives the tokens that each prompt gets alone."""

import random
from dataclasses import replace
from functools import partial

import pytest

from engine.interface.request import GenerationRequest
from engine.kv_cache import rows
from engine.memory.budget import MemoryBudget
from tests.engine.test_every_cache import alone, check_all, with_budgets
from tests.engine.vision.seeing import CONFIGS, Picture, expected, looked_at, seeing

BREAKS = ("mistral3", "pixtral")


def with_pictures(number: int, asked: GenerationRequest, *, breaks: bool = False) -> GenerationRequest:
    """Put one or two pictures into two of three prompts; some prompts that begin alike share them."""
    if number % 3 == 0:
        return asked
    prompt = list(asked.prompt)
    first = min(10, len(prompt) - 1)
    parts = [prompt[:first], Picture(number % 6), prompt[first:]]
    if number % 3 == 2:
        parts = [prompt[:first], Picture(number % 2), prompt[first:-1], Picture(20, 3, 4), prompt[-1:]]
    changed = looked_at(*parts, breaks=breaks)
    return replace(asked, prompt=changed.prompt, images=changed.images)


@pytest.fixture
def scarce_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then the next step does not fit, so that the youngest sequence is preempted."""
    rng, fits = random.Random(7), MemoryBudget.make_room
    monkeypatch.setattr(
        MemoryBudget, "make_room", lambda self, *rest: fits(self, *rest) and rng.random() > 0.1
    )


@pytest.mark.usefixtures("scarce_memory")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if at else []) for at, name in enumerate(CONFIGS)],
)
def test_a_batch_with_pictures_that_changes_all_the_time_equals_the_plain_loop(name: str) -> None:
    change = partial(with_pictures, breaks=name in BREAKS)
    check_all(seeing(name), lambda one: expected(name, replace(one, id="r")), change)


@pytest.mark.slow
@pytest.mark.usefixtures("scarce_memory")
@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5", "gemma3"])
def test_rows_with_pictures_outgrow_their_groups_and_think_within_budgets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(number: int, asked: GenerationRequest) -> GenerationRequest:
        return with_budgets(number, with_pictures(number, asked))

    monkeypatch.setattr(rows, "FIRST_LIMIT", 16)
    loaded = seeing(name)
    check_all(loaded, alone(loaded), changed)


@pytest.mark.slow
@pytest.mark.usefixtures("scarce_memory")
@pytest.mark.parametrize(("name", "kv_bits"), [("qwen3_vl", 8), ("gemma3", 4)])
def test_pictures_over_quantized_keys_equal_prompts_alone(name: str, kv_bits: int) -> None:
    loaded = seeing(name)
    check_all(loaded, alone(loaded, kv_bits=kv_bits), with_pictures, kv_bits=kv_bits)
