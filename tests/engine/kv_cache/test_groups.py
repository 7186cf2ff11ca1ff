"""Groups of rows of similar length: what they take, and which models can have them.

That rows in groups equal rows alone is in test_ragged_models.py, test_rollback.py and test_equality.py.
"""

import random
from collections.abc import Sequence

import mlx.core as mx
import pytest

from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.columns import round_columns
from reprise.engine.kv_cache.groups import count_cells, find_limit
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.probes import batch_fault, find_sharing
from reprise.engine.kv_cache.rows import Sharing
from tests.engine.support import make_model

LIMIT = 256


def add_rows(rows: BatchedRows, lengths: Sequence[int]) -> None:
    for length in lengths:
        caches = make_caches(rows.model)
        rows.model(mx.ones((1, length), mx.int32), cache=caches)
        rows.add(caches, length)


def test_a_long_row_beside_short_ones_takes_little_more_memory_than_alone() -> None:
    rows = BatchedRows(make_model("llama"), LIMIT)
    add_rows(rows, [200, 220, 5000, 240, 210, 230, 250, 190])
    rows.forward(mx.ones((8, 1), mx.int32))
    assert len(rows.extents) == 2
    held = sum(rows.lengths)
    assert sum(slots * columns for slots, columns in rows.extents) <= 1.3 * held


@pytest.mark.parametrize("seed", range(4))
def test_groups_take_no_more_than_was_counted(seed: int) -> None:
    rng = random.Random(seed)
    rows = BatchedRows(make_model("llama", num_hidden_layers=1), LIMIT)
    widest = 16
    for _ in range(40):
        if len(rows.lengths) < 5 and rng.random() < 0.3:
            add_rows(rows, [rng.choice((1, 100, 245, 250, 600))])
        elif len(rows.lengths) > 1 and rng.random() < 0.1:
            rows.remove(rng.randrange(len(rows.lengths)))
        if not rows.lengths:
            continue
        before = list(rows.lengths)
        # As the memory budget does it: before each step, and with nothing to spare.
        columns = [round_columns(length + widest) for length in before]
        counted = count_cells([(length, length + widest) for length in before], columns, LIMIT)
        rows.limit_growth(counted)
        fed = [[1] * rng.randint(1, widest) for _ in before]
        rows.forward_ragged(fed)
        assert sum(slots * held for slots, held in rows.extents) <= counted
        for row, tokens in enumerate(fed):
            rows.roll_back(row, before[row] + rng.randint(1, len(tokens)))


def test_one_group_uses_what_was_computed_for_all_rows() -> None:
    rows = BatchedRows(make_model("llama", num_hidden_layers=1), LIMIT)
    add_rows(rows, [3, 5])
    rows.forward_ragged([[1, 2], [3]])
    ((part,),) = (cache.parts.values() for cache in rows.caches)
    ours = part.columns.shared
    assert ours.padding is rows.shared.padding is not None
    assert ours.fed is rows.shared.fed
    assert ours.lengths == rows.shared.lengths == [5, 6]
    rows.forward(mx.array([[1], [2]]))
    assert ours.offset is rows.shared.offset
    assert ours.lengths == rows.shared.lengths == [6, 7]


def test_limits_double() -> None:
    assert [find_limit(num, 16) for num in (0, 16, 17, 32, 33, 1000)] == [16, 16, 32, 32, 64, 1024]
    assert find_limit(1000, None) is None


def test_a_model_that_looks_into_its_keys_has_one_group() -> None:
    model = make_model("llama")
    head = type(model).__call__

    class Curious:
        """Adds up the keys of its first layer, as models with an attention of their own do."""

        layers = model.layers

        def __call__(self, tokens, cache):
            logits = head(model, tokens, cache=cache)
            keys, _ = cache[0].keys_and_values() if hasattr(cache[0], "keys_and_values") else cache[0].state
            return logits + 0 * keys[:, :1, :1, :1].sum()

    curious = Curious()
    assert batch_fault(curious) is None
    assert "PerGroup" in (batch_fault(curious, first_limit=8) or "")
    assert find_sharing(curious) is Sharing.BUFFERS
