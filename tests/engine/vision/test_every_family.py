"""Whatever happens to a batch with images, every family gives the tokens that each prompt gets alone."""

import random
from dataclasses import replace
from functools import partial

import pytest

from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache import exact_widths, rows
from reprise.engine.kv_cache.columns import RowLengths
from reprise.engine.kv_cache.exact_widths import Tried, find_exact_shapes
from reprise.engine.kv_cache.rows import Sharing
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.speculative.costs.step_costs import StepCosts
from tests.engine.support import VOCAB_SIZE
from tests.engine.test_every_cache import alone, check_all, with_budgets
from tests.engine.vision.seeing import CONFIGS, Picture, expected, looked_at, seeing

BREAKS = ("mistral3", "pixtral")
AXES = [name for name in CONFIGS if name.startswith("qwen")]
"""Families whose rows have another place than their length after a picture."""


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


def told(name: str, asked: GenerationRequest) -> list[int]:
    """Return what the plain loop answers."""
    return expected(name, replace(asked, id="r"))


@pytest.fixture
def shorter_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_widths, "LENGTHS", (21, 30))
    monkeypatch.setattr(exact_widths, "LONG_LENGTHS", (120,))


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
    check_all(seeing(name), partial(told, name), partial(with_pictures, breaks=name in BREAKS))


@pytest.mark.slow
@pytest.mark.usefixtures("scarce_memory", "shorter_contexts")
@pytest.mark.parametrize("name", CONFIGS)
def test_exact_widths_are_exact_beside_pictures(name: str) -> None:
    tell, change = partial(told, name), partial(with_pictures, breaks=name in BREAKS)
    # Widths that are known are tried.
    costs = StepCosts({(1, width): 1.0 for width in range(1, 7)}, is_learned=False)
    ends = check_all(seeing(name), tell, change, costs=costs, exact=True)
    # What was tried at start, with rows of text, lets rows with pictures be drafted for.
    with_images = [end for name, end in ends.items() if name.isdecimal() and int(name) % 3]
    assert sum(end.usage.drafting.num_accepted for end in with_images) > 0


@pytest.mark.usefixtures("shorter_contexts")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if at else []) for at, name in enumerate(AXES)]
)
def test_places_that_pictures_shift_make_no_exact_width_inexact(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(rows, width) for rows in (1, 2, 3) for width in (2, 4, 6)]
    tried = Tried(seeing(name).model, Sharing.GROUPS, None, VOCAB_SIZE, 512)
    of_text = find_exact_shapes(tried, shapes, lambda _: None)
    add = RowLengths.add

    def add_shifted(lengths: RowLengths) -> None:
        add(lengths)
        lengths.shift(len(lengths.lengths) - 1, -2 - len(lengths.lengths) % 2)

    monkeypatch.setattr(RowLengths, "add", add_shifted)
    shifted = find_exact_shapes(tried, shapes, lambda _: None)
    assert shifted.shapes() == of_text.shapes() == set(shapes)
    assert shifted.shapes(is_long=True) == of_text.shapes(is_long=True)


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
