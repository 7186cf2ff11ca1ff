"""Heads in every layout draft what a reference drafts that was written from the papers."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from reprise.engine.kv_cache.buffers import RaggedKVCache, cut_slice, rebuild
from reprise.engine.kv_cache.columns import Columns, RowLengths
from reprise.engine.speculative.heads import eagle
from reprise.engine.speculative.heads.dflash import DFlashHead, read_config
from reprise.engine.speculative.heads.formats import find_own_heads, identify
from reprise.engine.speculative.heads.head import Taps, Target, find_ends, text_config
from reprise.engine.speculative.heads.loading import choose, fill, load_head
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.dflash_kinds import CONFIGS
from tests.engine.speculative.heads.published import AFTER_THE_LAST, QWEN
from tests.tiny_models import make_model, tiny_config

NUM = 4
TEXT = [7, 3, 91, 400, 12, 5, 5, 77, 230, 8, 61, 2]
CASES = [
    *((family, layout) for family in QWEN for layout in folders.LAYOUTS),
    *((family, layout) for family in AFTER_THE_LAST for layout in ("shards", "own folder")),
    ("nemotron_h", "shards"),
    ("nemotron_h", "own folder"),
    ("mimo", "shards"),
    ("llama", "own folder"),
]
FAMILIES = (*QWEN, *AFTER_THE_LAST, "mimo", "nemotron_h", "llama")


def greedy(logits: mx.array, first: int) -> mx.array:
    del first
    return mx.argmax(logits, axis=-1)


class Tiny:
    """A tiny target. states: what a head reads of TEXT, (1, positions, hidden)."""

    def __init__(self, family: str) -> None:
        changes: dict[str, Any] = {"num_experts": 0} if family == "qwen3_5" else {}
        if family.startswith("qwen3_5"):
            rope = {"type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
            changes |= {"rope_parameters": rope | {"mrope_section": [2, 1, 1]}}
        if family in (*AFTER_THE_LAST, "nemotron_h"):
            # Sparse attention that leaves positions out; with few heads many positions would be equally good.
            changes = {"routed_scaling_factor": 2.5, "index_topk": 5, "index_n_heads": 16}
        self.config = tiny_config(family, **changes)
        if family == "nemotron_h":
            self.config |= {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
            self.config["num_hidden_layers"] = len(self.config["hybrid_override_pattern"])
        self.model = make_model(self.config)
        ends = find_ends(self.model)
        vocab = mx.arange(512)
        self.text = text_config(self.config)
        self.target = Target("the target", self.config, len(self.model.layers), 512, ends)
        self.embedding = np.array(ends.embed(vocab))
        self.output = np.array(ends.logits(mx.eye(64)[None])[0]).T
        self.taps = (1,) if family == "mimo" else ()
        self.states = self.states_of(TEXT)

    def states_of(self, tokens: list[int]) -> mx.array:
        """Return the states that a head reads: (1, positions, hidden)."""
        with Taps(self.model, self.taps).tapping() as tapped:
            self.model(mx.array([tokens]))
        return tapped.states()[0]


@pytest.fixture(scope="module")
def tinies() -> dict[str, Tiny]:
    return {family: Tiny(family) for family in FAMILIES}


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
    assert head.taps == tiny.taps
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


def causal(is_causal: bool) -> dict[str, Any]:
    return {"dflash_config": dflash_config()["dflash_config"] | {"causal": is_causal}}


@pytest.mark.parametrize(
    "changes",
    [{}, SLIDING, SLIDING | causal(False), SLIDING | causal(True), SLIDING | {"is_causal": None}],
    ids=["full", "sliding", "sliding, not causal", "causal", "null"],
)
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


def test_values_of_gemma_4_s_drafters_are_normed_keys_of_contexts_and_of_the_block(
    tinies: dict[str, Tiny],
) -> None:
    head, states = make_head(tinies, "Gemma 4 DSpark")
    attention, (cache, *_) = head.layers[0].self_attn, head.make_cache()
    for x in (head.hidden_norm(head.fc(states)), states[..., :64]):
        _, values = attention.keep(x, cache)
        raw = np.array(attention.k_proj(x)).reshape(len(TEXT), -1, attention.head_dim).transpose(1, 0, 2)
        np.testing.assert_allclose(values[0, :, -len(TEXT) :], published.rms(raw, 1.0, 1e-6), rtol=1e-4)


def test_places_of_muse_glimmer_s_block_see_each_other_and_those_of_others_only_if_that_is_said() -> None:
    assert read_config(CONFIGS["Muse Glimmer"]).is_causal is False
    assert read_config(CONFIGS["Laguna"]).is_causal is True
    assert read_config(CONFIGS["DSpark"]).is_causal is None


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


def eagle_config(**changes: Any) -> dict[str, Any]:
    """Return the configuration of a head as SpecForge writes it, which reads the outputs of two layers."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": 1024,
        "vocab_size": 512, "draft_vocab_size": 96, "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1], "use_aux_hidden_state": True},
    } | changes  # fmt: skip


def eagle_arrays(num_taps: int, **changes: Any) -> published.Arrays:
    return published.tiny_eagle(known(eagle_config(**changes)), num_taps)


def known(config: dict[str, Any]) -> dict[str, Any]:
    """Return a head's configuration with what the reference reads."""
    return config | {"tap_size": config.get("target_hidden_size", 64)}


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
EAGLE = {
    "eagle3": {},
    "eagle3, all tokens": {"draft_vocab_size": 512, "rope_scaling": LLAMA3},
    "eagle3, the model's output head": {"draft_vocab_size": None, "attention_bias": True},
    "eagle3, deeper": {"num_hidden_layers": 3, "norm_before_fc": True, "norm_before_residual": True},
    "eagle3, sliding": {"layer_types": ["sliding_attention"], "sliding_window": 4},
    "eagle3, some sliding": {"num_hidden_layers": 2, **SLIDING},
    "eagle3.1": {"fc_norm": True, "norm_output": True, "model_type": "qwen3"},
    "eagle3, narrower": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1,
                         "target_hidden_size": 64},
}  # fmt: skip


@pytest.mark.parametrize("case", EAGLE)
def test_eagle_heads_draft_what_the_paper_says(tinies: dict[str, Tiny], case: str) -> None:
    tiny, config = tinies["llama"], eagle_config(**EAGLE[case])
    head, states = make_head(tinies, case)
    caches = head.make_cache()
    for newest in range(1, len(TEXT) - 1):
        head.feed(states[:, newest - 1 : newest], mx.array([TEXT[newest : newest + 1]]), caches)
        drafted = head.draft(states[:, newest], mx.array([TEXT[newest + 1]]), caches, NUM, greedy)
        known_states, following = np.array(states[0, : newest + 1]), TEXT[1 : newest + 2]
        ends = (tiny.embedding, tiny.output)
        arrays = eagle_arrays(2, **EAGLE[case])
        expected = published.draft_eagle(known(config), arrays, ends, known_states, following, NUM)
        assert drafted.tolist() == [expected]


@pytest.mark.parametrize("layout", folders.EAGLE_LAYOUTS)
def test_eagle_heads_draft_the_same_in_every_layout(
    tinies: dict[str, Tiny], layout: str, tmp_path: Path
) -> None:
    changes = {"model_type": "qwen3", "draft_vocab_size": 512} if layout == "DeepSpec" else {}
    tiny, config = tinies["llama"], eagle_config(**changes)
    arrays = eagle_arrays(3, **changes)
    found = identify(folders.write_eagle(tmp_path, layout, config, arrays))
    assert found is not None
    head = load_head(found, dataclasses.replace(tiny.target, num_layers=8), NUM)
    assert head.taps == (1, 3, 4)
    states = mx.concatenate([two_layers(tiny), tiny.states[:, ::-1]], axis=-1)
    caches, newest = head.make_cache(), 6
    head.feed(states[:, :newest], mx.array([TEXT[1 : newest + 1]]), caches)
    drafted = head.draft(states[:, newest], mx.array([TEXT[newest + 1]]), caches, NUM, greedy)
    text, ends = (np.array(states[0, : newest + 1]), TEXT[1 : newest + 2]), (tiny.embedding, tiny.output)
    assert drafted.tolist() == [published.draft_eagle(known(config), arrays, ends, *text, NUM)]


LLAMA3_ROPE = LLAMA3 | {"rope_theta": 500_000.0}


@pytest.mark.parametrize(
    "said",
    [
        {"rope_theta": 500_000.0, "rope_scaling": LLAMA3},
        {"rope_theta": None, "rope_scaling": LLAMA3_ROPE},
        {"rope_theta": None, "rope_parameters": LLAMA3_ROPE},
    ],
)
def test_all_ways_to_say_how_positions_are_rotated_are_read(said: dict[str, Any]) -> None:
    args = eagle.read_config(eagle_config(**said), 36).args
    assert (args.rope_theta, args.rope_scaling["rope_type"]) == (500_000.0, "llama3")


def test_layers_that_are_read_follow_from_the_target_s_number_if_none_are_named() -> None:
    config = eagle_config(eagle_config=None)
    assert eagle.read_config(config, 36).taps == (1, 17, 32)
    images = {"rope_scaling": {"type": "default", "mrope_section": [4, 2, 2]}}
    assert eagle.read_config(config | images, 36).args.rope_scaling is None


def two_layers(tiny: Tiny) -> mx.array:
    """Return states in place of those of two layers: any will do."""
    return mx.concatenate([tiny.states, tiny.states[..., ::-1]], axis=-1)


def make_head(tinies: dict[str, Tiny], kind: str) -> tuple[Any, mx.array]:
    """Make a head of a family, or a DFlash drafter; return it with the states that it reads."""
    if kind in ("full", "sliding"):
        tiny, config = tinies["llama"], dflash_config(**(SLIDING if kind == "sliding" else {}))
        arrays = {name: mx.array(array) for name, array in published.tiny_dflash(config).items()}
        head = DFlashHead(read_config(config), tiny.target.ends)
        fill("a test", head, arrays)
        return head, two_layers(tiny)
    if kind in EAGLE:
        tiny, config = tinies["llama"], eagle_config(**EAGLE[kind])
        arrays = {name: mx.array(array) for name, array in eagle_arrays(2, **EAGLE[kind]).items()}
        head = eagle.EagleHead(eagle.read_config(config, 2), tiny.target.ends, "lm_head.weight" in arrays)
        fill("a test", head, arrays)
        return head, two_layers(tiny)
    if kind in CONFIGS:
        tiny, config = tinies["llama"], read_config(CONFIGS[kind])
        head = DFlashHead(config, tiny.target.ends, ("embed_tokens", "lm_head") if "Gemma" in kind else ())
        shapes = {name: array.shape for name, array in tree_flatten(head.parameters())}
        arrays = {name: mx.array(array) for name, array in published.random_arrays(shapes).items()}
        fill("a test", head, arrays)
        return head, mx.concatenate([two_layers(tiny), tiny.states], axis=-1)
    tiny = tinies[kind]
    arrays = published.tiny_mtp(kind, full(tiny))
    with tempfile.TemporaryDirectory() as folder:
        place = folders.write_head(Path(folder), "shards", kind, tiny.config, arrays)
        found = choose(find_own_heads(place, tiny.config))
        assert found is not None
        return load_head(found, tiny.target, NUM), tiny.states


KINDS = (*FAMILIES, "full", "sliding", *CONFIGS, *EAGLE)


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
