"""Rows of different lengths, with rollback, equal one row at a time, bit for bit on the CPU."""

import random

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.buffers import RaggedKVCache, start_copies
from reprise.engine.kv_cache.columns import (
    Columns,
    Extent,
    RowLengths,
    grow_extent,
    max_slots,
    round_columns,
    shrink_extent,
)
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.sliding_window import SLACK_TOKENS, window_columns
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


def test_the_last_row_takes_the_slot_of_a_removed_one() -> None:
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


def test_rolling_back_to_more_tokens_than_a_row_holds_raises() -> None:
    rows = BatchedRows(make_model("llama"))
    rows.add(make_caches(rows.model), 0)
    with pytest.raises(ValueError, match="holds 0 tokens"):
        rows.roll_back(0, 1)


def two_empty_rows(window: int | None) -> tuple[RowLengths, Columns]:
    """Make the layout of two empty rows."""
    shared = RowLengths()
    columns = Columns(shared, window)
    for _ in range(2):
        shared.add()
        columns.add()
    return shared, columns


@pytest.mark.parametrize("window", [None, 16])
def test_padding_is_written_as_zeros(window: int | None) -> None:
    shared, columns = two_empty_rows(window)
    cache = RaggedKVCache(columns)
    for widths in ([2, 3], [3, 1]):
        shared.begin_forward(widths)
        columns.begin_forward()
        numbers = mx.ones((2, 1, max(widths), 4))
        for row, width in enumerate(widths):
            numbers[row, :, width:] = mx.nan
        fetched = cache.update_and_fetch(numbers, numbers)
        shared.end_forward()
        columns.end_forward()
        assert not any(mx.isnan(array).any().item() for array in fetched)
    assert shared.lengths == [5, 4]


@pytest.mark.parametrize("window", [None, 16])
def test_leftovers_of_a_failed_forward_are_never_read(window: int | None) -> None:
    shared, columns = two_empty_rows(window)
    cache = RaggedKVCache(columns)
    for widths, filling, is_built in (([1, 3], 1.0, True), ([5, 5], mx.nan, False), ([1, 1], 1.0, True)):
        shared.begin_forward(widths)
        columns.begin_forward()
        numbers = mx.full((2, 1, max(widths), 4), filling)
        fetched = cache.update_and_fetch(numbers, numbers)
        if is_built:
            shared.end_forward()
            columns.end_forward()
            assert not any(mx.isnan(array).any().item() for array in fetched)


def test_an_empty_row_reads_nothing_of_the_row_that_had_its_slot() -> None:
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


EXTENTS = st.tuples(st.integers(1, 64), st.integers(1, 40).map(lambda steps: steps * 256))
NEEDS = st.tuples(st.integers(1, 64), st.integers(0, 9000))


@given(EXTENTS, NEEDS, st.none() | st.integers(0, 10**6))
def test_buffers_grow_to_what_is_needed_within_a_limit(
    extent: Extent, needed: Extent, max_cells: int | None
) -> None:
    slots, columns = grow_extent(extent, needed, max_cells)
    assert slots >= needed[0]
    assert columns >= needed[1]
    least = needed[0] * round_columns(needed[1])
    if max_cells is None:
        assert slots >= extent[0]
        assert columns >= extent[1]
    else:
        assert slots * columns <= max(least, max_cells)


@given(EXTENTS, NEEDS)
def test_buffers_shrink_no_further_than_needed(extent: Extent, needed: Extent) -> None:
    needed = min(needed[0], extent[0]), min(needed[1], extent[1])
    slots, columns = shrink_extent(extent, needed)
    assert extent[0] >= slots >= needed[0]
    assert extent[1] >= columns >= needed[1]
    assert slots * columns <= max(1024, 8 * needed[0] * round_columns(needed[1]))


def test_buffers_shrink_when_rows_leave() -> None:
    rows, kept = rows_of(2000, 30, 40, 50, 60, 70, 80, 90)
    ((slots, _),) = rows.extents
    rows.remove(0)
    kept[0] = kept.pop()
    assert rows.extents == [(slots, 256)]
    while len(kept) > 1:
        rows.remove(len(kept) - 1)
        kept.pop()
    assert rows.extents[0][0] <= 4
    assert_equal_to_single_rows(rows, kept)


def test_buffers_exceed_the_limit_only_for_what_rows_need() -> None:
    rows, kept = rows_of(300, 30, 40, 50, 60)
    assert rows.extents == [(8, 512)]
    rows.limit_growth(0)
    assert rows.extents == [(5, 512)]
    rows.limit_growth(6 * 512)
    rows.forward_ragged([[7] * 300, *([[7]] * 4)])
    assert rows.extents == [(5, 768)]
    for row, tokens in enumerate(kept):
        tokens += [7] * (1 if row else 300)
    assert_equal_to_single_rows(rows, kept)


def test_buffers_that_grow_in_columns_give_up_spare_slots_where_memory_is_limited() -> None:
    rows, kept = rows_of(250, 30, 40, 50, 60)
    rows.remove(4)
    kept.pop()
    assert rows.extents == [(8, 256)]
    rows.limit_growth(5 * 512)
    rows.forward_ragged([[7] * 7, *([[7]] * 3)])
    assert rows.extents == [(4, 512)]
    for row, tokens in enumerate(kept):
        tokens += [7] * (1 if row else 7)
    assert_equal_to_single_rows(rows, kept)


def rows_of(*lengths: int) -> tuple[BatchedRows, list[list[int]]]:
    """Make rows of these lengths; return them with the tokens of each."""
    rows = BatchedRows(make_model("llama"))
    kept = [[5 + (row * 31 + at * at) % 4000 for at in range(length)] for row, length in enumerate(lengths)]
    for tokens in kept:
        caches = make_caches(rows.model)
        rows.model(mx.array(tokens)[None], cache=caches)
        rows.add(caches, len(tokens))
    return rows, kept


def assert_equal_to_single_rows(rows: BatchedRows, kept: list[list[int]]) -> None:
    """Check that the next token's logits are those of each row alone."""
    logits = rows.forward(mx.array([[9]] * len(kept)))
    for row, tokens in enumerate(kept):
        single = make_prompt_cache(rows.model)
        alone = rows.model(mx.array([[*tokens, 9]]), cache=single)[0, -1]
        assert mx.allclose(logits[row, 0], alone, rtol=1e-4, atol=1e-4).item()


@pytest.mark.parametrize("window", [16, 200, 2000])
def test_a_windows_buffers_are_bounded_however_rows_come_and_go(window: int) -> None:
    rng = random.Random(window)
    model = make_model("gemma3_text", sliding_window=window)
    rows = BatchedRows(model)
    widest = 4
    for _ in range(60):
        if len(rows.lengths) < 6 and rng.random() < 0.5:
            length = rng.choice((1, 90, 400))
            caches = make_caches(model)
            model(mx.ones((1, length), mx.int32), cache=caches)
            rows.add(caches, length)
        elif len(rows.lengths) > 1 and rng.random() < 0.4:
            rows.remove(rng.randrange(len(rows.lengths)))
        for _ in range(rng.choice((0, 1, 40))):
            if rows.lengths:
                rows.forward_ragged([[1] * rng.randint(1, widest) for _ in rows.lengths])
        for cache in rows.caches:
            if isinstance(cache, RaggedKVCache) and cache.arrays:
                assert cache.extent[0] <= max_slots(len(rows.lengths))
                longest = max(rows.lengths) + widest + SLACK_TOKENS
                assert cache.extent[1] <= window_columns(longest, window, widest)


def test_copies_of_buffers_that_have_just_shrunk_free_the_old_ones_layer_by_layer() -> None:
    rows = BatchedRows(make_model("llama", num_hidden_layers=8, num_key_value_heads=4))
    for _ in range(4):
        caches = make_caches(rows.model)
        rows.model(mx.ones((1, 300), mx.int32), cache=caches)
        rows.add(caches, 300)
    mx.eval(rows.forward(mx.ones((4, 1), mx.int32)))
    before = mx.set_memory_limit(0)
    for _ in range(3):
        rows.remove(0)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    copied = rows.kv_slice(0, 0, 300)
    start_copies(copied)
    mx.eval(copied)
    mx.set_memory_limit(before)
    # One layer's buffers and a few copies, not the new buffers of all layers.
    assert mx.get_peak_memory() - held <= held / 8
    assert mx.get_active_memory() < held
