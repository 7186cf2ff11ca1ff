"""Ragged rows with rollback equal one row at a time, bit for bit on the CPU."""

import random

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engine.rows import BatchedRows, make_caches
from tests.engine.support import VOCAB_SIZE, make_model


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_ragged_rounds_with_rollback_equal_single_rows(name: str, dtype: mx.Dtype) -> None:
    model = make_model(name, dtype)
    rng = random.Random(5)
    rows = BatchedRows(model)
    kept: list[list[int]] = []
    for length in (7, 300, 1, 42):
        tokens = [rng.randrange(VOCAB_SIZE) for _ in range(length)]
        caches = make_caches(model)
        model(mx.array(tokens)[None], cache=caches)
        rows.add(caches, length)
        kept.append(tokens)
    for _ in range(12):
        width = rng.choice((1, 1, 3, 6))
        fed = [[rng.randrange(VOCAB_SIZE) for _ in range(width)] for _ in kept]
        logits = rows.forward(mx.array(fed))
        for row, tokens in enumerate(kept):
            single = make_prompt_cache(model)
            model(mx.array(tokens)[None], cache=single)
            alone = model(mx.array(fed[row])[None], cache=single)
            assert mx.array_equal(logits[row], alone[0]).item()
            accepted = rng.randint(1, width)
            tokens += fed[row][:accepted]
            rows.roll_back(row, len(tokens))


def test_leaving_rows_hand_their_place_to_the_last() -> None:
    model = make_model("llama")
    rows = BatchedRows(model)
    tokens = [[5 + row] * (row + 2) for row in range(4)]
    for one in tokens:
        caches = make_caches(model)
        model(mx.array(one)[None], cache=caches)
        rows.add(caches, len(one))
    rows.remove(1)
    rows.remove(2)
    assert list(rows.lengths) == [2, 5]
    logits = rows.forward(mx.array([[9], [9]]))
    for row, one in enumerate((tokens[0], tokens[3])):
        single = make_prompt_cache(model)
        assert mx.array_equal(logits[row, 0], model(mx.array([[*one, 9]]), cache=single)[0, -1]).item()


def test_going_back_further_than_there_is_raises() -> None:
    rows = BatchedRows(make_model("llama"))
    rows.add(make_caches(rows.model), 0)
    with pytest.raises(ValueError, match="holds 0 tokens"):
        rows.roll_back(0, 1)
