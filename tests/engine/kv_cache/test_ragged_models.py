"""Rows of one batch, with mlx-lm's own models, give the logits of a row alone, byte for byte on the CPU.

Rows join and leave, are fed different numbers of tokens, and go back to any length within what they were fed.
Mamba 2 computes a prompt by other formulas than single tokens, so its rows are compared with a batch that is
fed the kept tokens one by one. Latent attention computes one token by other formulas than several, so its
logits agree up to rounding only.
"""

import itertools
import random
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.buffers import cut_slice, rebuild, take_state
from reprise.engine.kv_cache.per_row import Caches, make_caches
from reprise.engine.kv_cache.recurrent import MAX_LATER_STATES
from reprise.engine.kv_cache.rows import SeparateRows
from tests.engine.support import VOCAB_SIZE, make_model

IN_32_BITS = ["gemma3_text", "gpt_oss", "qwen3_next", "lfm2"]
# On the CPU, MLX computes mixtures of experts in float32 only.
IN_16_BITS = ["gemma3_text", "lfm2"]
QUANTIZED = ["llama", "gemma3_text", "qwen3_next"]
NUM_ROUNDS = 20
MAX_ROWS = 6


class RandomBatch:
    """A batch that rows join and leave at random, and the tokens that each of its rows holds."""

    def __init__(self, model: Any, kv_bits: int | None, seed: int, **groups: Any) -> None:
        self.rng = random.Random(seed)
        self.model = model
        self.kv_bits = kv_bits
        self.rows = BatchedRows(model, **groups)
        self.kept: list[list[int]] = []
        for length in (7, 300, 1, 42):
            self.join(length)

    def make_tokens(self, num: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(num)]

    def prefill(self, tokens: list[int]) -> Caches:
        """Return a row's own caches for these tokens."""
        caches = make_caches(self.model, self.kv_bits)
        if tokens:
            self.model(mx.array([tokens]), cache=caches)
        return caches

    def join(self, length: int) -> None:
        tokens = self.make_tokens(length)
        self.rows.add(self.prefill(tokens), length)
        self.kept.append(tokens)

    def leave(self, row: int) -> None:
        self.rows.remove(row)
        self.kept[row] = self.kept[-1]
        self.kept.pop()

    def change_rows(self) -> None:
        """Let a row join or leave, or decode a plain step, or nothing of these."""
        event = self.rng.random()
        if event < 0.25 and len(self.kept) < MAX_ROWS:
            self.join(self.rng.choice((0, 3, 20, 100)))
        elif event < 0.45 and len(self.kept) > 1:
            self.leave(self.rng.randrange(len(self.kept)))
        elif event < 0.7:
            newest = self.make_tokens(len(self.kept))
            self.rows.forward(mx.array(newest)[:, None])
            for tokens, token in zip(self.kept, newest, strict=True):
                tokens.append(token)

    def verify(self) -> tuple[list[list[int]], mx.array]:
        """Feed every row some tokens; return them and the logits."""
        fed = [self.make_tokens(self.rng.choice((1, 1, 3, 6))) for _ in self.kept]
        return fed, self.rows.forward_ragged(fed)

    def roll_back(self, fed: list[list[int]]) -> None:
        """Keep any part of what was fed, perhaps nothing."""
        for row, tokens in enumerate(fed):
            self.kept[row] += tokens[: self.rng.randint(0, len(tokens))]
            assert self.rows.roll_back(row, len(self.kept[row])) == len(self.kept[row])


def check_random_rounds(
    model: Any,
    kv_bits: int | None = None,
    seed: int = 1,
    tolerance: float = 0.0,
    **groups: Any,
) -> None:
    """Check that the logits of every round, and what is cut out at the end, are those of rows alone.

    tolerance: by how much they may differ, of the largest number among them. groups: options of BatchedRows.
    """

    def agree(ours: mx.array, theirs: mx.array) -> bool:
        if not tolerance or not theirs.size:
            return bool(mx.array_equal(ours, theirs).item())
        return bool((mx.abs(ours - theirs).max() <= tolerance * mx.abs(theirs).max()).item())

    batch = RandomBatch(model, kv_bits, seed, **groups)
    for _ in range(NUM_ROUNDS):
        fed, logits = batch.verify()
        for row, tokens in enumerate(fed):
            alone = model(mx.array([tokens]), cache=batch.prefill(batch.kept[row]))[0]
            assert agree(logits[row, : len(tokens)], alone)
        batch.roll_back(fed)
        batch.change_rows()
    for row, tokens in enumerate(batch.kept):
        if not tokens:
            continue
        alone_caches = batch.prefill(tokens)
        kv_slice, state = batch.rows.kv_slice(row, 0, len(tokens)), batch.rows.state(row)
        for ours, theirs in (
            (kv_slice, cut_slice(alone_caches, 0, len(tokens))),
            (state, take_state(alone_caches)),
        ):
            assert all(itertools.starmap(agree, zip(ours, theirs, strict=True)))
        again = rebuild(make_caches(model, kv_bits), [kv_slice] if kv_slice else [], state, len(tokens))
        ours = model(mx.array([[9]]), cache=again)
        assert agree(ours, model(mx.array([[9]]), cache=alone_caches))


@pytest.mark.parametrize("name", ["gemma2", "bailing_moe_linear", "olmo_hybrid", *IN_32_BITS])
def test_rows_of_a_batch_equal_rows_alone(name: str) -> None:
    check_random_rounds(make_model(name))


@pytest.mark.parametrize("name", ["llama", *IN_32_BITS])
def test_rows_in_groups_equal_rows_alone(name: str) -> None:
    # Rows outgrow such short groups all the time.
    check_random_rounds(make_model(name), seed=2, first_limit=4)


@pytest.mark.parametrize(
    ("chunk", "options"),
    [
        (16, {}),
        pytest.param(100, {"first_limit": 4}, marks=pytest.mark.slow),
        pytest.param(64, {"kv_bits": 8}, marks=pytest.mark.slow),
    ],
)
def test_rows_of_a_batch_equal_rows_alone_with_chunked_attention(chunk: int, options: dict[str, int]) -> None:
    # The temperature of full attention depends on the position; here it changes every 8 tokens.
    model = make_model("llama4", attention_chunk_size=chunk, floor_scale=8, attn_scale=0.5)
    check_random_rounds(model, **options)


@pytest.mark.parametrize("name", ["gemma2", "gear", "plamo"])
def test_rows_in_groups_by_layer_equal_rows_alone(name: str) -> None:
    check_random_rounds(make_model(name), seed=2, first_limit=4, by_layer=True)


@pytest.mark.parametrize("groups", [{}, {"first_limit": 4, "by_layer": True}], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "deepseek_v3",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("deepseek_v32", "bailing_hybrid")),
    ],
)
def test_rows_of_a_batch_equal_rows_alone_with_latent_attention(name: str, groups: dict[str, Any]) -> None:
    # With fewer heads many tokens have a score of zero, and it is a matter of luck which of them are chosen.
    check_random_rounds(make_model(name, index_n_heads=8), tolerance=1e-4, **groups)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", IN_16_BITS)
def test_rows_of_a_batch_equal_rows_alone_in_16_bits(name: str, dtype: mx.Dtype) -> None:
    check_random_rounds(make_model(name, dtype))


@pytest.mark.parametrize(("name", "kv_bits"), [(name, 4 + 4 * (at % 2)) for at, name in enumerate(QUANTIZED)])
def test_rows_of_a_batch_equal_rows_alone_over_quantized_keys(name: str, kv_bits: int) -> None:
    check_random_rounds(make_model(name), kv_bits)
    check_random_rounds(make_model(name), kv_bits, first_limit=4)


@pytest.mark.parametrize("window", [1, 64, 100])
def test_rows_of_a_batch_equal_rows_alone_with_any_window(window: int) -> None:
    check_random_rounds(make_model("gemma3_text", sliding_window=window), seed=window)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", IN_32_BITS)
def test_many_batches_equal_rows_alone(name: str, seed: int) -> None:
    check_random_rounds(make_model(name), seed=100 + seed)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["mamba2", "falcon_h1"])
def test_mamba_2_verifies_several_tokens_as_it_decodes_one_by_one(name: str, dtype: mx.Dtype) -> None:
    model = make_model(name, dtype)
    batch = RandomBatch(model, None, 1)
    alone = SeparateRows(model)
    for tokens in batch.kept:
        alone.add(batch.prefill(tokens), len(tokens))
    for _ in range(NUM_ROUNDS):
        starts = [len(tokens) for tokens in batch.kept]
        fed, logits = batch.verify()
        batch.roll_back(fed)
        for row, (start, tokens) in enumerate(zip(starts, batch.kept, strict=True)):
            for at, token in enumerate(tokens[start:]):
                single = model(mx.array([[token]]), cache=alone.caches[row])[0, 0]
                assert mx.array_equal(logits[row, at], single).item()


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2"])
def test_rows_go_back_to_drafted_tokens_whose_states_were_kept(name: str) -> None:
    model = make_model(name)
    batch = RandomBatch(model, None, 5)
    for num_drafted in (1, 3, MAX_LATER_STATES, MAX_LATER_STATES + 2) * 2:
        fed = [batch.make_tokens(batch.rng.choice((1, 2, 4))) for _ in batch.kept]
        batch.rows.forward_ragged(fed)
        for _ in range(num_drafted):
            newest = batch.make_tokens(len(fed))
            batch.rows.forward(mx.array(newest)[:, None], keeps_state=True)
            for tokens, token in zip(fed, newest, strict=True):
                tokens.append(token)
        for row, tokens in enumerate(fed):
            kept = batch.rng.randint(0, len(tokens))
            reached = kept if kept == len(tokens) else min(kept, len(tokens) - num_drafted + MAX_LATER_STATES)
            batch.kept[row] += tokens[:reached]
            length = len(batch.kept[row]) - reached + kept
            assert batch.rows.roll_back(row, length) == len(batch.kept[row])
        fed, logits = batch.verify()
        for row, tokens in enumerate(fed):
            alone = model(mx.array([tokens]), cache=batch.prefill(batch.kept[row]))[0]
            assert mx.array_equal(logits[row, : len(tokens)], alone).item()
        batch.roll_back(fed)


def test_a_forward_that_keeps_no_state_ends_what_rows_can_go_back_to() -> None:
    batch = RandomBatch(make_model("lfm2"), None, 6)
    starts = list(batch.rows.lengths)
    batch.rows.forward_ragged([[5, 6]] * len(starts))
    for keeps_state in (True, False, True):
        batch.rows.forward(mx.array([[7]] * len(starts)), keeps_state=keeps_state)
    assert [batch.rows.roll_back(row, start + 4) for row, start in enumerate(starts)] == [
        start + 3 for start in starts
    ]


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next", "mamba2", "falcon_h1"])
def test_a_step_that_cannot_be_built_changes_nothing(name: str) -> None:
    model = make_model(name)
    batch, other = RandomBatch(model, None, 3), RandomBatch(model, None, 3)
    fed, _ = batch.verify()
    batch.roll_back(fed)
    fed, _ = other.verify()
    other.roll_back(fed)
    head = model.__call__

    class BrokenError(Exception):
        pass

    def break_off(tokens: mx.array, cache: Any) -> mx.array:
        head(tokens, cache=cache)
        raise BrokenError

    batch.rows.model = break_off
    for run in (
        lambda: batch.rows.forward_ragged([[5] * 4, *[[6]] * (len(batch.kept) - 1)]),
        lambda: batch.rows.forward(mx.array([[7]] * len(batch.kept))),
    ):
        with pytest.raises(BrokenError):
            run()
    batch.rows.model = model
    newest = mx.array([[9]] * len(batch.kept))
    assert mx.array_equal(batch.rows.forward(newest), other.rows.forward(newest)).item()
