"""Drafting and rollback with mlx-lm's own models give the logits of one plain prefill, byte for byte.

Mamba 2 and latent attention are the exceptions: they compute several tokens by other formulas than one, so
they are not exact across widths on any build. Mamba 2 is compared with forward passes over what was kept.
"""

import logging
import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.probes import batch_fault, find_sharing, kv_bits_fault, rollback_fault
from reprise.engine.kv_cache.rows import Rows, SeparateRows, Sharing, make_rows
from tests.engine.conftest import StartEngine
from tests.engine.support import CONFIGS, VOCAB_SIZE, ask, make_model, prompt_of, request

LATENT = ("deepseek_v3", "deepseek_v32", "bailing_hybrid")
BY_OTHER_FORMULAS = ("mamba2", "falcon_h1", *LATENT)
EXACT = [name for name in CONFIGS if name not in BY_OTHER_FORMULAS]
# On the CPU, MLX computes mixtures of experts in float32 only.
HALF = [name for name in EXACT if name not in ("gpt_oss", "qwen3_next", "llama4")]
NUM_ROUNDS = 30
NUM_ROWS = 3
# The sliding windows have 16 tokens, so each row passes them many times.
NUM_TOKENS = 260


def add_prefilled(rows: Rows, model: Any, prompts: list[list[int]], kv_bits: int | None = None) -> None:
    """Prefill these prompts and add a row for each."""
    for prompt in prompts:
        caches = make_caches(model, kv_bits)
        model(mx.array([prompt]), cache=caches)
        rows.add(caches, len(prompt))


def check_partly_kept_drafts(model: Any, kv_bits: int | None = None) -> None:
    """Run rounds of partly kept drafts; check that all kept logits equal those of one plain prefill."""
    rng = random.Random(11)
    true = [prompt_of(NUM_TOKENS, row) for row in range(NUM_ROWS)]
    caches = [make_caches(model, kv_bits) for _ in true]
    plain = [
        np.array(model(mx.array([tokens]), cache=own)[0].astype(mx.float32))
        for tokens, own in zip(true, caches, strict=True)
    ]
    rows = make_rows(model, find_sharing(model, kv_bits))
    held = [5, 30, 17]
    add_prefilled(rows, model, [tokens[:n] for tokens, n in zip(true, held, strict=True)], kv_bits)
    for _ in range(NUM_ROUNDS):
        fed, kept = [], []
        for row, tokens in enumerate(true):
            width = rng.randint(1, 8)
            kept.append(rng.randint(1, width))
            right = tokens[held[row] : held[row] + kept[row]]
            fed.append([*right, *(rng.randrange(VOCAB_SIZE) for _ in range(width - kept[row]))])
        logits = np.array(rows.forward_ragged(fed).astype(mx.float32))
        for row in range(NUM_ROWS):
            start, held[row] = held[row], held[row] + kept[row]
            assert logits[row, : kept[row]].tobytes() == plain[row][start : held[row]].tobytes()
            assert rows.roll_back(row, held[row]) == held[row]


@pytest.mark.parametrize("name", EXACT)
def test_partly_kept_drafts_equal_one_prefill(name: str) -> None:
    check_partly_kept_drafts(make_model(name))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_partly_kept_drafts_equal_one_prefill_in_16_bits(name: str, dtype: mx.Dtype) -> None:
    check_partly_kept_drafts(make_model(name, dtype))


@pytest.mark.parametrize("kv_bits", [4, 8])
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text"])
def test_partly_kept_drafts_equal_one_prefill_over_quantized_keys(name: str, kv_bits: int) -> None:
    check_partly_kept_drafts(make_model(name), kv_bits)


def test_separate_rows_feed_what_they_keep_of_a_draft_again() -> None:
    model = make_model("mamba2")
    rng = random.Random(4)
    true = prompt_of(NUM_TOKENS)
    rows = SeparateRows(model)
    add_prefilled(rows, model, [true[:20]])
    alone = make_caches(model)
    model(mx.array([true[:20]]), cache=alone)
    held = 20
    for _ in range(40):
        width = rng.randint(1, 4)
        kept = rng.randint(0, width)
        rows.forward_ragged([[*true[held : held + kept], *[7] * (width - kept)]])
        if kept:
            model(mx.array([true[held : held + kept]]), cache=alone)
        held += kept
        assert rows.roll_back(0, held) == held
        for ours, theirs in zip(rows.caches[0], alone, strict=True):
            assert all(mx.array_equal(*pair).item() for pair in zip(ours.cache, theirs.cache, strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_the_width_changes_no_byte(name: str) -> None:
    model = make_model(name)
    tokens = prompt_of(90)
    caches = make_caches(model)
    plain = mx.concatenate([model(mx.array([[token]]), cache=caches)[0] for token in tokens])
    assert mx.array_equal(model(mx.array([tokens]), cache=make_prompt_cache(model))[0], plain).item()
    for width in (2, 3, 8, 45, 90):
        caches = make_caches(model)
        parts = [mx.array([tokens[at : at + width]]) for at in range(0, 90, width)]
        assert mx.array_equal(mx.concatenate([model(part, cache=caches)[0] for part in parts]), plain).item()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_here_can_be_rolled_back(name: str) -> None:
    assert rollback_fault(make_model(name)) is None


def test_a_cache_of_an_unknown_kind_is_named() -> None:
    model = make_model("llama")
    model.make_cache = lambda: [KVCache(), RotatingKVCache(16, keep=4)]
    assert rollback_fault(model) == "the model keeps a RotatingKVCache, which cannot be rolled back"


def test_a_rollback_that_leaves_a_trace_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("qwen3_next")
    monkeypatch.setattr(KVCache, "trim", lambda _, n: n)
    assert "leave a trace in the model's ArraysCache and KVCache" in str(rollback_fault(model))
    monkeypatch.setattr(KVCache, "trim", lambda *_: 0)
    assert "KVCache of 9 tokens was not trimmed to 5" in str(rollback_fault(model))


def test_rolling_back_beyond_the_last_forward_raises() -> None:
    model = make_model("lfm2")
    rows = SeparateRows(model)
    add_prefilled(rows, model, [prompt_of(9), prompt_of(4)])
    with pytest.raises(
        ValueError, match="row 0 holds 9 tokens and can be rolled back to a length from 9 to 9, not to 8"
    ):
        rows.roll_back(0, 8)
    rows.forward_ragged([[5, 6, 7], [5]])
    with pytest.raises(
        ValueError, match="row 0 holds 12 tokens and can be rolled back to a length from 9 to 12, not to 8"
    ):
        rows.roll_back(0, 8)
    with pytest.raises(
        ValueError, match="row 1 holds 5 tokens and can be rolled back to a length from 4 to 5, not to 6"
    ):
        rows.roll_back(1, 6)
    assert rows.roll_back(0, 11) == 11
    assert rows.roll_back(1, 5) == 5
    assert list(rows.lengths) == [11, 5]


def test_removing_a_row_removes_its_snapshot() -> None:
    model = make_model("lfm2")
    rows = SeparateRows(model)
    prompts = [prompt_of(9), prompt_of(4, 1), prompt_of(6, 2)]
    add_prefilled(rows, model, prompts)
    rows.forward_ragged([[5], [6, 7], [8, 9, 10]])
    rows.remove(0)
    assert rows.roll_back(0, 7) == 7
    assert rows.roll_back(1, 6) == 6
    logits = rows.forward(mx.array([[11], [12]]))
    for row, tokens in enumerate(([*prompts[2], 8, 11], [*prompts[1], 6, 7, 12])):
        last = logits[row, 0]
        assert mx.array_equal(last, model(mx.array([tokens]))[0, -1]).item()


@pytest.mark.parametrize("name", [*CONFIGS, "bailing_moe_linear"])
def test_all_share_a_forward_but_a_state_of_unknown_origin(name: str) -> None:
    model = make_model(name)
    less = {"baichuan_m1": Sharing.NOTHING}
    sharing = less.get(name, Sharing.LAYERS if name in LATENT else Sharing.GROUPS)
    assert find_sharing(model) is sharing
    assert isinstance(make_rows(model, sharing), BatchedRows if sharing else SeparateRows)


@pytest.mark.parametrize("kv_bits", [4, 8])
def test_quantized_keys_and_values_share_a_forward(kv_bits: int) -> None:
    assert find_sharing(make_model("qwen3_next"), kv_bits)


def test_the_reason_why_rows_have_a_forward_each_is_given() -> None:
    model = make_model("llama")
    assert "not known how a layer computes its state" in str(batch_fault(make_model("baichuan_m1")))
    model.make_cache = lambda: [KVCache(), RotatingKVCache(16, keep=4)]
    assert batch_fault(model) == "the model keeps a RotatingKVCache, which rows cannot share"


def test_the_log_says_once_why_rows_have_a_forward_each(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reprise.engine")
    for name, num_lines in (("gemma3_text", 0), ("baichuan_m1", 1)):
        caplog.clear()
        ask(start_engine(name), request(prompt_of(9))).finished()
        said = [record.getMessage() for record in caplog.records]
        assert sum("a forward pass of its own" in line for line in said) == num_lines


def test_the_reason_why_a_cache_cannot_be_quantized_is_given() -> None:
    assert kv_bits_fault(make_model("llama"), 8) is None
    assert "groups of 32" in str(kv_bits_fault(make_model("llama", head_dim=8), 8))
    assert "sinks" in str(kv_bits_fault(make_model("gpt_oss"), 8))
    assert "no plain keys" in str(kv_bits_fault(make_model("mamba2"), 8))
