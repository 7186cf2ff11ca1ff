"""Ragged rows with rollback equal one row at a time, bit for bit on the CPU."""

import random

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engine.kv import RaggedKVCache, RowLengths
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
        widths = [rng.choice((1, 1, 3, 6)) for _ in kept]
        fed = [[rng.randrange(VOCAB_SIZE) for _ in range(width)] for width in widths]
        logits = rows.forward_ragged(fed)
        for row, tokens in enumerate(kept):
            single = make_prompt_cache(model)
            model(mx.array(tokens)[None], cache=single)
            alone = model(mx.array(fed[row])[None], cache=single)
            assert mx.array_equal(logits[row, : widths[row]], alone[0]).item()
            tokens += fed[row][: rng.randint(1, widths[row])]
            assert rows.roll_back(row, len(tokens)) == rows.lengths[row] == len(tokens)


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


def test_padding_is_written_as_zeros() -> None:
    shared = RowLengths()
    shared.add(0)
    shared.add(0)
    cache = RaggedKVCache(shared)
    for widths in ([2, 3], [3, 1]):
        shared.begin(widths)
        numbers = mx.ones((2, 1, max(widths), 4))
        for row, width in enumerate(widths):
            numbers[row, :, width:] = mx.nan
        _, values = cache.update_and_fetch(numbers, numbers)
        shared.end()
        assert not mx.isnan(values).any().item()
    assert shared.lengths == [5, 4]


def test_what_a_broken_forward_left_behind_is_never_read() -> None:
    shared = RowLengths()
    shared.add(0)
    shared.add(0)
    cache = RaggedKVCache(shared)
    for widths, filling, is_built in (([1, 3], 1.0, True), ([5, 5], mx.nan, False), ([1, 1], 1.0, True)):
        shared.begin(widths)
        numbers = mx.full((2, 1, max(widths), 4), filling)
        _, values = cache.update_and_fetch(numbers, numbers)
        if is_built:
            shared.end()
            assert not mx.isnan(values).any().item()


def test_an_empty_row_finds_nothing_of_the_one_before_it() -> None:
    model = make_model("llama")
    rows = BatchedRows(model)
    for length in (6, 9, 8):
        caches = make_caches(model)
        model(mx.array([[7] * length]), cache=caches)
        caches[0].values[:] = mx.nan
        rows.add(caches, length)
    rows.remove(2)
    rows.remove(0)
    rows.add(make_caches(model), 0)
    logits = rows.forward(mx.array([[9], [9]]))
    assert mx.array_equal(logits[1, 0], model(mx.array([[9]]))[0, -1]).item()
