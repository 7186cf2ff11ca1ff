"""Find the widths whose logits equal those of width 1 byte for byte, by trying them on this machine."""

from collections.abc import Iterable
from typing import Any

import mlx.core as mx

from engine.kv_cache.rows import Rows, Sharing, make_caches, make_rows
from engine.model.loading import Progress

NUM_TRIALS = 3
LENGTHS = (21, 70, 200)
"""Tokens in the probed rows; row r has r more, so that rows differ in length."""


def find_exact_shapes(
    model: Any,
    sharing: Sharing,
    kv_bits: int | None,
    vocab_size: int,
    shapes: Iterable[tuple[int, int]],
    progress: Progress,
) -> frozenset[tuple[int, int]]:
    """Return the (rows, width) of shapes whose logits had the same bytes as width 1 in every trial.

    A single difference rules a shape out. A shape that passes is very likely exact, but that is no proof.
    """
    shapes = sorted(shapes)
    exact = set()
    for done, (num_rows, width) in enumerate(shapes):
        trials = [(LENGTHS[trial % len(LENGTHS)], trial) for trial in range(NUM_TRIALS)]
        if all(_is_exact(model, sharing, kv_bits, vocab_size, num_rows, width, *trial) for trial in trials):
            exact.add((num_rows, width))
        progress((done + 1) / len(shapes))
    mx.clear_cache()
    return frozenset(exact)


def _is_exact(
    model: Any,
    sharing: Sharing,
    kv_bits: int | None,
    vocab_size: int,
    num_rows: int,
    width: int,
    length: int,
    trial: int,
) -> bool:
    fed = [
        [(trial * 977 + row * 131 + at * 29) % vocab_size for at in range(width)] for row in range(num_rows)
    ]
    narrow = _make_rows(model, sharing, kv_bits, vocab_size, num_rows, length)
    steps = [narrow.forward(mx.array([[tokens[at]] for tokens in fed]))[:, 0] for at in range(width)]
    rows = _make_rows(model, sharing, kv_bits, vocab_size, num_rows, length)
    wide = rows.forward_ragged(fed)
    # What the caches hold after a rollback must be exact too.
    kept = width // 2
    for row, tokens in enumerate(fed):
        rows.roll_back(row, rows.lengths[row] - len(tokens) + kept)
    again = rows.forward(mx.array([[tokens[kept]] for tokens in fed]))[:, 0]
    return bool((mx.array_equal(mx.stack(steps, axis=1), wide) & mx.array_equal(steps[kept], again)).item())


def _make_rows(
    model: Any, sharing: Sharing, kv_bits: int | None, vocab_size: int, num_rows: int, length: int
) -> Rows:
    rows = make_rows(model, sharing)
    for row in range(num_rows):
        tokens = [(row * 37 + at * 61 + 11) % vocab_size for at in range(length + row)]
        caches = make_caches(model, kv_bits)
        model(mx.array([tokens]), cache=caches)
        rows.add(caches, len(tokens))
    return rows
