"""Ranks say what a token sees: those of no higher rank, as if tokens had changed places."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.rows import SeparateRows
from tests.engine.support import VOCAB_SIZE, make_model
from tests.engine.windows import logits_at

LENGTHS = {"of one length": (12, 12, 12), "of different lengths": (3, 40, 12)}


def make_rows(model: Any, kept: Sequence[Sequence[int]], first_limit: int | None = None) -> BatchedRows:
    """Make a batch of rows that hold these tokens."""
    rows = BatchedRows(model, first_limit)
    for tokens in kept:
        caches = make_caches(model)
        model(mx.array([tokens]), cache=caches)
        rows.add(caches, len(tokens))
    return rows


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(5, VOCAB_SIZE) for _ in range(count)]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("first_limit", [None, 16])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_ranks_equal_moving_the_tokens(name: str, first_limit: int | None, lengths: tuple[int, ...]) -> None:
    model, rng = make_model(name), random.Random(3)
    kept = [random_tokens(rng, length) for length in lengths]
    rows = make_rows(model, kept, first_limit)
    for _ in range(4):
        fed = [random_tokens(rng, rng.randint(2, 7)) for _ in kept]
        ranks = [rng.sample(range(len(tokens)), len(tokens)) for tokens in fed]
        logits = rows.forward_ragged(fed, ranks)
        for row, (tokens, given, held) in enumerate(zip(fed, ranks, kept, strict=True)):
            order = sorted(range(len(tokens)), key=given.__getitem__)
            places = [*range(len(held)), *(len(held) + at for at in order)]
            moved = logits_at(model, [*held, *(tokens[at] for at in order)], places)[len(held) :]
            assert mx.allclose(logits[row, mx.array(order)], moved, atol=1e-3)
            rows.roll_back(row, len(held))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "llama4"])
def test_ranks_in_order_are_a_causal_mask(name: str, lengths: tuple[int, ...]) -> None:
    model, rng = make_model(name), random.Random(4)
    kept = [random_tokens(rng, length) for length in lengths]
    fed = [random_tokens(rng, 5), random_tokens(rng, 3), random_tokens(rng, 5)]
    plain = make_rows(model, kept).forward_ragged(fed)
    ranked = make_rows(model, kept).forward_ragged(fed, [range(5), None, range(5)])
    for row, tokens in enumerate(fed):
        assert mx.array_equal(plain[row, : len(tokens)], ranked[row, : len(tokens)])


def test_a_row_without_ranks_is_the_same_beside_a_row_with_ranks() -> None:
    model, rng = make_model("llama"), random.Random(5)
    kept = [random_tokens(rng, length) for length in (20, 30)]
    fed = [random_tokens(rng, 4), random_tokens(rng, 6)]
    plain = make_rows(model, kept).forward_ragged(fed)
    beside = make_rows(model, kept).forward_ragged(fed, [None, [0, 4, 1, 5, 2, 3]])
    assert mx.array_equal(plain[0, :4], beside[0, :4])
    assert not mx.array_equal(plain[1], beside[1])


def test_rows_with_a_forward_pass_each_refuse_ranks() -> None:
    rows = SeparateRows(make_model("llama"))
    rows.add(make_caches(rows.model), 0)
    with pytest.raises(ValueError, match="no ranks"):
        rows.forward_ragged([[5, 6]], [[1, 0]])
