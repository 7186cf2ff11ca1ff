"""Rollback is exact: after thousands of partly kept drafts every kind of cache is as if nothing was drafted.

The model computes in integers, so no order of additions can round differently. Its logits and the contents
of its caches must equal those of one plain prefill, byte for byte, on any machine.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.convolution import Conv1d
from mlx_lm.models import gated_delta
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from reprise.engine.kv_cache import columns
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.buffers import GroupedKVCache, RaggedKVCache, rebuild
from reprise.engine.kv_cache.groups import PerGroup
from reprise.engine.kv_cache.per_row import Caches, leaves, make_caches
from reprise.engine.kv_cache.rows import Rows, SeparateRows
from reprise.engine.kv_cache.sliding_window import ChunkedWindowKVCache

NUM_SCHEDULES = {"some": 300, "many": 10_000}
MAX_ROUNDS = 2
MAX_ROWS = 4
WIDEST = 8
WINDOW = 16
DIM = 32
NUM_TOKENS = 251
MAX_TOKENS = 420
PERIOD = 5

# Numbers by position and token; the second half depends on the position, as with rotary embeddings.
EMBEDDING = np.tile(np.arange(NUM_TOKENS, dtype=np.float32)[:, None], (PERIOD, 1, DIM))
EMBEDDING[:, :, DIM // 2 :] += np.arange(PERIOD)[:, None, None]
# With 0 and 255 in every group of 32, quantizing to eight bits keeps these integers exactly.
EMBEDDING[:, :, :2] = 0, 255

NUM_PLACES = 4
"""Places of the recurrent state: a token overwrites one of them, and some tokens erase all others."""

KINDS: dict[str, Callable[[], list[Any]]] = {
    "full": lambda: [KVCache()],
    "latent": lambda: [KVCache()],
    "window": lambda: [RotatingKVCache(WINDOW)],
    "chunked": lambda: [ChunkedKVCache(WINDOW), KVCache()],
    "recurrent": lambda: [ArraysCache(2)],
    "hybrid": lambda: [ArraysCache(2), KVCache(), RotatingKVCache(WINDOW)],
    "list": lambda: [CacheList(ArraysCache(2), RotatingKVCache(WINDOW)), CacheList(KVCache(), KVCache())],
}


class IntegerModel:
    """A model of integers that reads all that its caches return; its logits are (rows, width, numbers)."""

    def __init__(self, kind: str) -> None:
        self.make_cache = KINDS[kind]
        self.is_latent = kind == "latent"
        self.embedding, self.places = mx.array(EMBEDDING), mx.eye(NUM_PLACES)
        self.convolution = Conv1d(DIM, DIM, kernel_size=4, groups=DIM, bias=False)
        self.convolution.weight = mx.ones((DIM, 4, 1)) * mx.array([1, 3, 0, 2])[:, None]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return mx.concatenate([self._layer(tokens, one) for one in leaves(cache)], axis=-1)

    def _layer(self, tokens: mx.array, cache: Any) -> mx.array:
        if isinstance(cache, ArraysCache):
            return self._recurrent(tokens, cache)
        width = tokens.shape[1]
        offset = cache.offset
        at = (offset[:, None] if isinstance(offset, mx.array) else offset) + mx.arange(width)
        mask = _make_mask(cache, width)
        numbers = self.embedding[at % PERIOD, tokens][:, None]
        if self.is_latent:
            # With latent attention (MLA), keys are values too, and what is stored as values is narrower.
            values, _ = cache.update_and_fetch(numbers, numbers[..., : DIM // 2])
        else:
            _, values = cache.update_and_fetch(numbers, numbers)
        if isinstance(values, PerGroup):
            return cache.groups.join(
                [self._sum(cache, m, v) for m, v in zip(mask.parts, values.parts, strict=True)]
            )
        return self._sum(cache, mask, values)

    def _sum(self, cache: Any, mask: mx.array | None, values: Any) -> mx.array:
        if hasattr(cache, "bits"):
            values = mx.dequantize(*values, group_size=cache.group_size, bits=cache.bits)
        summed: mx.array = values.sum(axis=2, keepdims=True) if mask is None else mask @ values
        return summed[:, 0]

    def _recurrent(self, tokens: mx.array, cache: ArraysCache) -> mx.array:
        """A convolution, and a delta rule that overwrites its state, both exact in integers."""
        (num_rows, width), mask = tokens.shape, cache.make_mask(tokens.shape[1])
        last = cache[0] if cache[0] is not None else mx.zeros((num_rows, 3, DIM))
        numbers = self.embedding[0, tokens]
        numbers = numbers if mask is None else mx.where(mask[..., None], numbers, 0)
        convolved = mx.concatenate([last, numbers], axis=1)
        ends = mx.full(num_rows, width) if cache.lengths is None else cache.lengths
        cache[0] = mx.take_along_axis(convolved, (ends[:, None] + mx.arange(3))[..., None], axis=1)
        at = self.places[tokens % NUM_PLACES][:, :, None]
        seen, cache[1] = gated_delta.gated_delta_ops(
            mx.ones_like(at), at, self.convolution(convolved)[:, :, None], (tokens % 7 > 0)[..., None],
            mx.ones((num_rows, width, 1)), cache[1], mask,
        )  # fmt: skip
        cache.advance(width)
        return seen[:, :, 0]


def _make_mask(cache: Any, width: int) -> Any:
    """Make the mask of a forward; of one row's chunks, as Llama 4 makes it itself."""
    if not isinstance(cache, ChunkedWindowKVCache):
        return cache.make_mask(width, return_array=True, window_size=None)
    reads = mx.arange(cache.start_position, cache.offset + width)
    writes = cache.offset + mx.arange(width)[:, None]
    return ((reads // WINDOW == writes // WINDOW) & (reads <= writes))[None, None]


class Life:
    """One row's true tokens and the logits that the model computes for them in one plain prefill."""

    def __init__(self, model: Any, kv_bits: int | None, rng: random.Random, num_tokens: int) -> None:
        self.rng = rng
        self.tokens = [rng.randrange(NUM_TOKENS) for _ in range(num_tokens)]
        self.caches = make_caches(model, kv_bits)
        self.logits = np.array(model(mx.array([self.tokens]), cache=self.caches)[0])
        self.num_computed = 0

    def row_input(self) -> tuple[list[int], int]:
        """Return tokens to feed, and how many of them to keep."""
        width = self.rng.randint(1, WIDEST)
        kept = self.rng.randint(0, width)
        true = self.tokens[self.num_computed : self.num_computed + kept]
        return [*true, *(self.rng.randrange(NUM_TOKENS) for _ in range(width - kept))], kept

    @property
    def is_over(self) -> bool:
        """Whether another schedule might need more tokens than there are."""
        return self.num_computed + MAX_ROUNDS * WIDEST >= len(self.tokens)


def run_schedule(rows: Rows, lives: list[Life], num_rounds: int) -> None:
    """Run verification steps that keep random parts of the drafts; check all kept logits."""
    checks = []
    for _ in range(num_rounds):
        fed = [life.row_input() for life in lives]
        logits = rows.forward_ragged([tokens for tokens, _ in fed])
        for row, (life, (tokens, kept)) in enumerate(zip(lives, fed, strict=True)):
            assert rows.lengths[row] == life.num_computed + len(tokens)
            start, life.num_computed = life.num_computed, life.num_computed + kept
            checks.append((logits[row, :kept], life.logits[start : life.num_computed]))
            assert rows.roll_back(row, life.num_computed) == rows.lengths[row] == life.num_computed
    mx.eval([ours for ours, _ in checks])
    for ours, plain in checks:
        assert np.array(ours).tobytes() == plain.tobytes()


def contents(caches: list[Any], length: int) -> list[bytes]:
    """Return what one row's caches hold of the first length tokens; of windows, what the next token sees."""
    held = []
    for cache in leaves(caches):
        if isinstance(cache, ArraysCache):
            held += [np.array(array).tobytes() for array in cache.cache if array is not None]
            continue
        cache.trim(cache.offset - length)
        parts = cache.keys if hasattr(cache, "bits") else (cache.keys, cache.values)
        if hasattr(cache, "window"):
            num_seen = length % WINDOW if isinstance(cache, ChunkedWindowKVCache) else min(length, WINDOW - 1)
            cache.update_and_fetch(*[mx.zeros((1, 1, 1, DIM))] * 2)
            parts = tuple(part[:, :, -1 - num_seen :] for part in cache.keys_and_values())
            held += [np.array(part).tobytes() for part in parts]
        else:
            held += [np.array(part[:, :, :length]).tobytes() for part in parts]
    return held


def run_lives(kind: str, kv_bits: int | None, make: Callable[[Any], Rows], num_schedules: int) -> None:
    """Run schedules; check at the end that the caches equal those of a plain prefill of the same tokens."""
    rng = random.Random(f"{kind} {kv_bits}")
    model = IntegerModel(kind)
    num_done = 0
    while num_done < num_schedules:
        num_rows = rng.randint(1, MAX_ROWS)
        rows = make(model)
        lives = [Life(model, kv_bits, rng, rng.randint(200, MAX_TOKENS)) for _ in range(num_rows)]
        for life in lives:
            life.num_computed = rng.randint(0, 90) * rng.randint(0, 1)
            caches = make_caches(model, kv_bits)
            if life.num_computed:
                model(mx.array([life.tokens[: life.num_computed]]), cache=caches)
            rows.add(caches, life.num_computed)
        while not any(life.is_over for life in lives):
            num_rounds = rng.randint(1, MAX_ROUNDS)
            run_schedule(rows, lives, num_rounds)
            num_done += num_rows
            if isinstance(rows, BatchedRows):
                poison_leftovers(rows)
        for row, life in enumerate(lives):
            again = make_caches(model, kv_bits)
            model(mx.array([life.tokens[: life.num_computed]]), cache=again)
            ours = caches_of(rows, row, make_caches(model, kv_bits))
            assert contents(ours, life.num_computed) == contents(again, life.num_computed)


def caches_of(rows: Rows, row: int, empty: Caches) -> Caches:
    """Return a row's caches, rebuilt as they would be from the prefix cache."""
    length = rows.lengths[row]
    kv_slice = rows.kv_slice(row, 0, length)
    return rebuild(empty, [kv_slice] if kv_slice else [], rows.state(row), length)


def poison_leftovers(rows: BatchedRows) -> None:
    """Overwrite the leftovers of rejected drafts with NaN, the worst that they could be."""
    for cache in leaves(rows.caches):
        parts = cache.parts.values() if isinstance(cache, GroupedKVCache) else [cache]
        for part in parts:
            if not isinstance(part, RaggedKVCache):
                continue
            for slot, dirty_end in enumerate(part.columns.dirty_ends):
                for array in part.arrays:
                    if array.dtype != mx.uint32:
                        array[slot, :, part.columns.end_of(slot) : dirty_end] = mx.nan


@pytest.fixture(params=["some", pytest.param("many", marks=pytest.mark.slow)])
def num_schedules(request: pytest.FixtureRequest) -> int:
    return NUM_SCHEDULES[request.param]


@pytest.mark.parametrize(
    "make",
    [SeparateRows, BatchedRows, partial(BatchedRows, first_limit=16)],
    ids=["separate", "batched", "groups"],
)
@pytest.mark.parametrize(
    ("kind", "kv_bits"),
    [("full", 8), *((kind, None) for kind in KINDS)],
    ids=["quantized", *KINDS],
)
def test_rejected_tokens_leave_no_trace(
    kind: str,
    kv_bits: int | None,
    make: Callable[[Any], Rows],
    num_schedules: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The rows of a window are often moved to the front.
    monkeypatch.setattr(columns, "SLACK_TOKENS", 8)
    monkeypatch.setattr(columns, "ROLLBACK_TOKENS", 8)
    run_lives(kind, kv_bits, make, num_schedules)
