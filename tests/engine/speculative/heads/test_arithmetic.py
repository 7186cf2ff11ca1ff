"""Heads in every layout draft what a reference drafts that was written from the papers."""

import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.kv_cache.buffers import RaggedKVCache, cut_slice, rebuild
from reprise.engine.kv_cache.columns import Columns, RowLengths
from reprise.engine.speculative.heads.formats import find_own_heads, identify, text_config
from reprise.engine.speculative.heads.head import find_ends
from reprise.engine.speculative.heads.kinds import DFlashHead
from reprise.engine.speculative.heads.loading import Target, choose, fill, load_head, read_dflash_config
from tests.engine.speculative.heads import folders, published
from tests.tiny_models import make_model, tiny_config

NUM = 4
TEXT = [7, 3, 91, 400, 12, 5, 5, 77, 230, 8, 61, 2]
QWEN = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
CASES = [
    *((family, layout) for family in QWEN for layout in folders.LAYOUTS),
    *((family, layout) for family in ("deepseek_v3", "glm4_moe") for layout in ("shards", "own folder")),
    ("llama", "own folder"),
]


def greedy(logits: mx.array, first: int) -> mx.array:
    del first
    return mx.argmax(logits, axis=-1)


class Tiny:
    """A tiny target. states: (1, positions, hidden) after the final norm, of TEXT."""

    def __init__(self, family: str) -> None:
        changes: dict[str, Any] = {"num_experts": 0} if family == "qwen3_5" else {}
        if family.startswith("qwen3_5"):
            rope = {"type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
            changes |= {"rope_parameters": rope}
        if family in ("deepseek_v3", "glm4_moe"):
            changes = {"routed_scaling_factor": 2.5}
        self.config = tiny_config(family, **changes)
        self.model = make_model(self.config)
        ends = find_ends(self.model)
        vocab = mx.arange(512)
        self.text = text_config(self.config)
        self.target = Target("the target", self.config, len(self.model.layers), 512, ends)
        self.embedding = np.array(ends.embed(vocab))
        self.output = np.array(ends.logits(mx.eye(64)[None])[0]).T
        body = self.model.language_model.model if hasattr(self.model, "language_model") else self.model.model
        self.states = body(mx.array([TEXT]))


@pytest.fixture(scope="module")
def tinies() -> dict[str, Tiny]:
    return {family: Tiny(family) for family in (*QWEN, "deepseek_v3", "glm4_moe", "llama")}


def full(tiny: Tiny) -> dict[str, Any]:
    known = tiny_config("qwen3_5")["text_config"]
    return known | tiny.text


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_mtp_heads_draft_what_the_papers_say(
    tinies: dict[str, Tiny], family: str, layout: str, tmp_path: Path
) -> None:
    tiny = tinies[family]
    config = full(tiny)
    arrays = published.tiny_mtp(family, config)
    place = folders.write_head(tmp_path, layout, family, tiny.config, arrays)
    found = identify(place) if layout == "own folder" else choose(find_own_heads(place, tiny.config))
    assert found is not None
    head = load_head(found, tiny.target, NUM)
    assert head.taps == ()
    caches = head.make_cache()
    for newest in range(1, len(TEXT) - 1):
        head.feed(tiny.states[:, newest - 1 : newest], mx.array([TEXT[newest : newest + 1]]), caches)
        drafted = head.draft(tiny.states[:, newest], mx.array([TEXT[newest + 1]]), caches, NUM, greedy)
        states, following = np.array(tiny.states[0, : newest + 1]), TEXT[1 : newest + 2]
        expected = published.draft_mtp(
            family, config, arrays, (tiny.embedding, tiny.output), states, following, NUM
        )
        assert drafted.tolist() == [expected]


def in_one_batch(
    own: list[list[Any]], lengths: list[int]
) -> tuple[RowLengths, list[Columns], list[RaggedKVCache]]:
    """Return caches of several rows with what each row's own caches hold, by row and layer."""
    shared = RowLengths()
    columns = [Columns(shared, getattr(cache, "window", None)) for cache in own[0]]
    ragged = [RaggedKVCache(one) for one in columns]
    for row, (given, length) in enumerate(zip(own, lengths, strict=True)):
        shared.add()
        shared.lengths[row] = length
        for one, cache, held in zip(columns, ragged, given, strict=True):
            one.add()
            one.place(row)
            cache.fill(row, held)
    return shared, columns, ragged


def begin(shared: RowLengths, columns: list[Columns], widths: list[int]) -> None:
    shared.begin_forward(widths)
    for one in columns:
        assert one.begin_forward() == []


def dflash_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": 1024,
        "vocab_size": 512, "block_size": 6, "num_target_layers": 2, "layer_types": ["full_attention"] * 2,
        "sliding_window": None, "dflash_config": {"mask_token_id": 509, "target_layer_ids": [0, 1]},
    } | changes  # fmt: skip


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}


@pytest.mark.parametrize("changes", [{}, SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize("num", [1, 5])
def test_dflash_drafts_what_the_paper_says(
    tinies: dict[str, Tiny], changes: dict[str, Any], num: int, tmp_path: Path
) -> None:
    tiny = tinies["llama"]
    config = dflash_config(**changes)
    arrays = published.tiny_dflash(config)
    folders.write_json(tmp_path / "config.json", config)
    folders.save(tmp_path / "model.safetensors", arrays, None)
    found = identify(tmp_path)
    assert found is not None
    head = load_head(found, tiny.target, 31)
    assert (head.taps, head.max_drafted) == ((0, 1), 5)
    states = two_layers(tiny)
    caches = head.make_cache()
    for newest in range(1, len(TEXT) - 1):
        head.feed(states[:, newest - 1 : newest], mx.array([TEXT[newest : newest + 1]]), caches)
        drafted = head.draft(states[:, newest], mx.array([TEXT[newest + 1]]), caches, num, greedy)
        known, ends = np.array(states[0, : newest + 1]), (tiny.embedding, tiny.output)
        assert drafted.tolist() == [
            published.draft_dflash(config, arrays, ends, known, TEXT[newest + 1], num)
        ]


def test_moved_keys_are_those_of_the_text_without_what_was_dropped(tinies: dict[str, Tiny]) -> None:
    head, states = make_head(tinies, "full")
    sink, num = 2, states.shape[1]
    head.set_bounds(sink, 3)
    for window in (3, num - sink - 1):
        whole, short = head.make_cache(), head.make_cache()
        head.feed(states, mx.zeros((1, num), mx.int32), whole)
        parts = [states[:, :sink], states[:, num - window :]]
        head.feed(mx.concatenate(parts, axis=1), mx.zeros((1, sink + window), mx.int32), short)
        dropped = num - sink - window
        kept = [cut_slice(whole, 0, sink), head.bounds.move(cut_slice(whole, num - window, num), dropped)]
        made = rebuild(head.make_cache(), kept, [], sink + window)
        made, due = (cut_slice(caches, 0, sink + window) for caches in (made, short))
        for one, other in zip(made, due, strict=True):
            assert mx.allclose(one, other, atol=1e-4)


def two_layers(tiny: Tiny) -> mx.array:
    """Return states in place of those of two layers: any will do."""
    return mx.concatenate([tiny.states, tiny.states[..., ::-1]], axis=-1)


def make_head(tinies: dict[str, Tiny], kind: str) -> tuple[Any, mx.array]:
    """Make a head of a family, or a DFlash drafter; return it with the states that it reads."""
    if kind in ("full", "sliding"):
        tiny, config = tinies["llama"], dflash_config(**(SLIDING if kind == "sliding" else {}))
        arrays = {name: mx.array(array) for name, array in published.tiny_dflash(config).items()}
        head = DFlashHead(read_dflash_config(config), tiny.target.ends)
        fill("a test", head, arrays)
        return head, two_layers(tiny)
    tiny = tinies[kind]
    arrays = published.tiny_mtp(kind, full(tiny))
    with tempfile.TemporaryDirectory() as folder:
        found = identify(folders.write_head(Path(folder), "own folder", kind, tiny.config, arrays))
        assert found is not None
        return load_head(found, tiny.target, NUM), tiny.states


KINDS = (*QWEN, "deepseek_v3", "glm4_moe", "llama", "full", "sliding")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_batch_draft_what_each_drafts_alone(tinies: dict[str, Tiny], kind: str) -> None:
    head, states = make_head(tinies, kind)
    lengths, own, alone = [3, 9, 6], [], []
    for length in lengths:
        caches = head.make_cache()
        head.feed(states[:, :length], mx.array([TEXT[1 : length + 1]]), caches)
        last = mx.array([TEXT[length + 1]])
        alone += head.draft(states[:, length], last, caches, NUM, greedy).tolist()
        own.append(caches)
    shared, columns, ragged = in_one_batch(own, lengths)
    newest = mx.concatenate([states[:, length] for length in lengths])
    last = mx.array([TEXT[length + 1] for length in lengths])
    # Twice: a draft leaves nothing behind.
    for _ in range(2):
        begin(shared, columns, [1, 1, 1])
        assert head.draft(newest, last, ragged, NUM, greedy).tolist() == alone


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_batch_read_what_each_reads_alone(tinies: dict[str, Tiny], kind: str) -> None:
    head, states = make_head(tinies, kind)
    lengths, widths, own, alone = [3, 5, 1], [2, 1, 4], [], []
    for length, width in zip(lengths, widths, strict=True):
        end, read = length + width, head.make_cache()
        head.feed(states[:, :end], mx.array([TEXT[1 : end + 1]]), read)
        alone += head.draft(states[:, end], mx.array([TEXT[end + 1]]), read, NUM, greedy).tolist()
        own.append(head.make_cache())
        head.feed(states[:, :length], mx.array([TEXT[1 : length + 1]]), own[-1])
    shared, columns, ragged = in_one_batch(own, lengths)
    begin(shared, columns, widths)
    fed = mx.concatenate([states[:, length : length + 4] for length in lengths])
    head.feed(fed, mx.array([TEXT[length + 1 : length + 5] for length in lengths]), ragged)
    shared.end_forward()
    for one in columns:
        one.end_forward()
    begin(shared, columns, [1, 1, 1])
    newest = mx.concatenate([states[:, end] for end in shared.lengths])
    last = mx.array([TEXT[end + 1] for end in shared.lengths])
    assert head.draft(newest, last, ragged, NUM, greedy).tolist() == alone
