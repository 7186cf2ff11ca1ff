"""Exact widths are tried with and without a mask, with one row and several, and with long contexts."""

import json
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.kv_cache import exact_widths
from reprise.engine.kv_cache.exact_widths import (
    DIFFERENT,
    EQUAL,
    LONG,
    Exactness,
    Tried,
    find_exact_shapes,
)
from reprise.engine.kv_cache.rows import Sharing
from tests.engine.support import VOCAB_SIZE, make_model

SHAPES = [(rows, width) for rows in (1, 2, 3) for width in (2, 4, 8)]


class Rounding:
    """A model whose logits change in forward passes of several tokens under one condition."""

    def __init__(self, name: str, condition: Any) -> None:
        self.model = make_model(name)
        self.layers = self.model.layers
        self.condition = condition

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self.model(tokens, cache=cache)
        # Texts are read in longer chunks.
        is_wide = 1 < tokens.shape[1] <= 8
        return logits + 1 if is_wide and self.condition(tokens, cache[0]) else logits


def find(condition: Any, name: str = "llama") -> Exactness:
    model = Rounding(name, condition)
    return find_exact_shapes(Tried(model, Sharing.GROUPS, None, VOCAB_SIZE, 512), SHAPES, lambda _: None)


@pytest.fixture(autouse=True)
def shorter_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_widths, "LENGTHS", (21, 30))
    monkeypatch.setattr(exact_widths, "LONG_LENGTHS", (120,))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "lfm2"])
def test_on_the_cpu_all_widths_are_exact(name: str) -> None:
    found = find_exact_shapes(
        Tried(make_model(name), Sharing.GROUPS, None, VOCAB_SIZE, 512), SHAPES, lambda _: None
    )
    assert found.shapes() == found.shapes(is_long=True) == set(SHAPES)
    assert found.describe() == "1 to 3 rows: all up to 8"


def test_kernels_that_differ_by_width_are_found_with_and_without_a_mask() -> None:
    found = find(lambda tokens, _: tokens.shape[1] == 4)
    assert found.shapes() == {shape for shape in SHAPES if shape[1] != 4}
    assert set(found.differing[1, 4]) == {EQUAL, LONG}
    assert set(found.differing[2, 4]) == {EQUAL, DIFFERENT, LONG}
    assert found.describe() == "1 to 3 rows: 2, 8"


def test_kernels_that_differ_with_a_mask_are_found() -> None:
    found = find(lambda _, cache: isinstance(cache.offset, mx.array))
    assert found.shapes() == {shape for shape in SHAPES if shape[0] == 1}
    assert set(found.differing[3, 8]) == {DIFFERENT, LONG}
    assert found.describe() == "1 row: all up to 8; 2 to 3 rows: none"
    assert found.by_circumstance(1) == {"short contexts": "all up to 8", LONG: "all up to 8"}
    assert found.by_circumstance(3) == {EQUAL: "all up to 8", DIFFERENT: "none", LONG: "none"}


def test_kernels_that_differ_without_a_mask_are_found() -> None:
    found = find(lambda tokens, cache: len(tokens) > 1 and isinstance(cache.offset, int))
    assert set(found.differing[3, 8]) == {EQUAL, LONG}
    assert not found.differing[1, 8]


def test_kernels_that_differ_in_long_contexts_count_there_for_any_number_of_rows() -> None:
    found = find(
        lambda _, cache: isinstance(cache.offset, mx.array) and int(mx.max(cache.offset).item()) > 100
    )
    assert found.shapes() == set(SHAPES)
    assert found.shapes(is_long=True) == {shape for shape in SHAPES if shape[0] == 1}
    said = "1 to 3 rows: all up to 8. Beyond 1000 tokens: 1 row: all up to 8; 2 to 3 rows: none"
    assert found.describe() == said


def test_progress_comes_with_every_few_forward_passes_and_ends_at_all() -> None:
    told: list[float] = []
    find_exact_shapes(Tried(make_model("llama"), Sharing.GROUPS, None, VOCAB_SIZE, 512), SHAPES, told.append)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    assert max(after - before for before, after in pairwise([0.0, *told])) < 0.1


def test_a_width_that_differs_is_not_tried_again_and_progress_still_ends_at_all() -> None:
    told: list[float] = []
    num_wide = 0

    def count(_: mx.array, __: Any) -> bool:
        nonlocal num_wide
        num_wide += 1
        return True

    model = Rounding("llama", count)
    found = find_exact_shapes(Tried(model, Sharing.GROUPS, None, VOCAB_SIZE, 512), SHAPES, told.append)
    assert found.describe() == "1 to 3 rows: none"
    # Once for each width, number of rows and circumstance.
    assert num_wide == 3 * (5 + 2)
    assert told[-1] == pytest.approx(1.0)


def test_a_processor_is_spared_the_longest_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_widths, "LONG_LENGTHS", (120, 200))
    assert list(find(lambda *_: False).lengths) == [21, 30, 120]


def test_what_was_found_can_be_kept() -> None:
    found = find(lambda tokens, _: tokens.shape[1] == 4)
    again = Exactness.of(json.loads(json.dumps(found.encode())))
    assert again.describe() == found.describe()
    assert again.shapes(is_long=True) == found.shapes(is_long=True)
    assert list(again.lengths) == list(found.lengths)


def test_long_contexts_are_not_tried_beyond_the_models_own() -> None:
    model = make_model("llama")
    fed: list[int] = []

    def run(tokens: mx.array, cache: Any) -> mx.array:
        fed.append(tokens.size)
        logits: mx.array = model(tokens, cache=cache)
        return logits

    run.layers = model.layers  # type: ignore[attr-defined]
    found = find_exact_shapes(Tried(run, Sharing.GROUPS, None, VOCAB_SIZE, 64), SHAPES, lambda _: None)
    assert found.shapes(is_long=True) == set(SHAPES)
    assert max(fed) == 30
