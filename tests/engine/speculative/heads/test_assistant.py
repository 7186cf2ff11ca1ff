"""Gemma 4's assistant drafts what a reference drafts, from the keys and values of its own row alone."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache

from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.rows import NextTokenView, Rows, SeparateRows, Sharing, make_rows
from reprise.engine.speculative.heads import assistant
from reprise.engine.speculative.heads.formats import identify
from reprise.engine.speculative.heads.head import Target, TargetEnds, find_ends
from reprise.engine.speculative.heads.loading import load_head
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_arithmetic import NUM, greedy
from tests.tiny_models import make_model, tiny_config

FULL, WINDOW = "full_attention", "sliding_attention"
KINDS = [WINDOW, FULL, WINDOW, FULL]
LARGE = {"num_kv_shared_layers": 0, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
"""What the large models have, and the small ones have not."""


ROPE = {
    FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
    WINDOW: {"rope_theta": 10_000.0, "rope_type": "default"},
}


def assistant_config(routed: bool = False, hidden: int = 64, **changes: Any) -> dict[str, Any]:
    """Return a tiny assistant's config.json. hidden: of its target. changes: of its text_config."""
    text = tiny_config("gemma4_text", num_hidden_layers=3, layer_types=[WINDOW, WINDOW, FULL])
    text |= {"hidden_size": 32, "num_attention_heads": 4, "hidden_size_per_layer_input": 0}
    text |= {"num_kv_shared_layers": 3, "use_double_wide_mlp": False, "rope_parameters": ROPE}
    return {
        "model_type": "gemma4_assistant", "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": hidden, "use_ordered_embeddings": routed, "num_centroids": 32,
        "centroid_intermediate_top_k": 4, "tie_word_embeddings": True, "text_config": text | changes,
    }  # fmt: skip


class Tiny:
    """A tiny target and its assistant, which is loaded from a folder."""

    def __init__(self, folder: Path, routed: bool = False, **changes: Any) -> None:
        self.config = tiny_config("gemma4_text", **changes)
        self.model = make_model(self.config)
        self.own = assistant_config(routed)
        self.arrays = published.tiny_assistant(self.own)
        folders.write_json(folder / "config.json", self.own)
        folders.save(folder / "model.safetensors", self.arrays, "pt")
        self.target = Target("the model", self.config, 4, 512, find_ends(self.model))
        found = identify(folder)
        assert found is not None
        self.head = load_head(found, self.target, NUM)

    def states(self, text: list[int]) -> mx.array:
        """Return (positions, hidden) states after the final norm."""
        states: mx.array = self.model.model(mx.array([text]))[0]
        return states

    def rows_of(self, texts: list[list[int]], sharing: Sharing, kv_bits: int | None = None) -> Rows:
        """Return rows that hold these texts, each without its last token."""
        rows = make_rows(self.model, sharing)
        for text in texts:
            caches = make_caches(self.model, kv_bits)
            self.model(mx.array([text[:-2] or text[:-1]]), cache=caches)
            rows.add(caches, len(text[:-2] or text[:-1]))
        fed = [text[-2:-1] if len(text) > 2 else [9] for text in texts]
        before = list(rows.lengths)
        rows.forward_ragged(fed)
        for row, text in enumerate(texts):
            rows.roll_back(row, before[row] + (len(text) > 2))
        return rows


def draft(
    head: Any, rows: Rows, wanted: list[int], states: list[mx.array], last: list[int], num: int = NUM
) -> list[list[int]]:
    """Draft for some rows. states, last: of each the newest state, and the token after it."""
    num_caches = len(rows.caches[0] if isinstance(rows, SeparateRows) else rows.caches)
    seen = [NextTokenView(rows, wanted, num_caches - back) for back in (1, 2)]
    with NextTokenView.attending():
        drafted: Any = head.draft(mx.stack(states), mx.array(last), seen, num, greedy)
    return list(drafted.tolist())


def text_of(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed + length).integers(1, 512, length)]


@pytest.mark.parametrize("changes", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("routed", [False, True], ids=["tied", "routed"])
def test_it_drafts_what_the_reference_drafts(tmp_path: Path, routed: bool, changes: dict[str, Any]) -> None:
    tiny = Tiny(tmp_path, routed, **changes)
    whole, embedding = text_of(60), np.array(tiny.target.ends.embed(mx.arange(512)[None])[0])
    caches = [KVCache() for _ in make_caches(tiny.model)]
    tiny.model(mx.array([whole]), cache=caches)
    last = dict(zip(KINDS, caches, strict=False))
    states = tiny.states(whole)
    for num in (2, 5, 15, 16, 17, 18, 40, 59):
        rows = tiny.rows_of([whole[: num + 1]], Sharing.GROUPS)
        held = {
            kind: tuple(np.array(one[0, :, :num]) for one in (cache.keys, cache.values))
            for kind, cache in last.items()
        }
        expected = published.draft_assistant(
            tiny.own,
            tiny.arrays,
            embedding,
            np.array(states[num - 1]),
            whole[num],
            held,
            NUM,  # type: ignore[arg-type]
        )
        assert draft(tiny.head, rows, [0], [states[num - 1]], [whole[num]]) == [expected]


@pytest.mark.parametrize(
    ("sharing", "kv_bits"),
    [
        (Sharing.GROUPS, None),
        (Sharing.BUFFERS, None),
        (Sharing.NOTHING, None),
        (Sharing.GROUPS, 8),
        (Sharing.NOTHING, 8),
    ],
)
def test_rows_of_one_batch_draft_what_each_drafts_alone(
    tmp_path: Path, sharing: Sharing, kv_bits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reprise.engine.kv_cache.rows.FIRST_LIMIT", 32)
    tiny = Tiny(tmp_path, **LARGE)
    texts = [text_of(length) for length in (3, 40, 17, 90, 8, 25, 200, 2)]
    states = [tiny.states(text[:-1])[-1] for text in texts]
    alone = []
    for text, state in zip(texts, states, strict=True):
        rows = tiny.rows_of([text], Sharing.NOTHING, kv_bits)
        alone += draft(tiny.head, rows, [0], [state], text[-1:])
    rows, newest = tiny.rows_of(texts, sharing, kv_bits), [text[-1] for text in texts]
    assert draft(tiny.head, rows, list(range(8)), states, newest) == alone
    # Tokens that a row forgets are not seen, and a row that leaves takes no other with it.
    before = list(rows.lengths)
    rows.forward_ragged([[7] * (1 + row % 4) for row in range(8)])
    for row, length in enumerate(before):
        rows.roll_back(row, length)
    rows.remove(2)
    order = [0, 1, 7, 3, 4, 5, 6]
    some = [5, 0, 2, 6]
    drafted = draft(
        tiny.head, rows, some, [states[order[at]] for at in some], [newest[order[at]] for at in some]
    )
    assert drafted == [alone[order[at]] for at in some]


@pytest.mark.parametrize(
    ("of_model", "of_head", "why"),
    [
        ({"hidden_size": 32}, {}, "its backbone_hidden_size is 64, that of the model 32"),
        ({}, {"vocab_size": 1024}, "its vocab_size is 1024, that of the model 512"),
        ({"sliding_window": 8}, {}, "its sliding_window is 16, that of the model 8"),
        ({}, {"global_head_dim": 64}, "its global_head_dim is 64, that of the model 32"),
        ({"num_key_value_heads": 3}, {}, "its 4 heads cannot share 3 of keys"),
        ({"model_type": "llama"}, {}, "the model is a llama"),
    ],
)
def test_an_assistant_of_another_model_is_refused(
    tmp_path: Path, of_model: dict[str, Any], of_head: dict[str, Any], why: str
) -> None:
    own = assistant_config(**of_head)
    folders.write_json(tmp_path / "config.json", own)
    folders.save(tmp_path / "model.safetensors", published.tiny_assistant(own), "pt")
    found = identify(tmp_path)
    assert found is not None
    model = make_model(tiny_config("gemma4_text"))
    target = Target("the model", tiny_config("gemma4_text") | of_model, 4, 512, find_ends(model))
    with pytest.raises(
        ModelError, match=f"the Gemma 4 assistant in {tmp_path} does not fit the model: {why}. Use one"
    ):
        load_head(found, target, NUM)


PUBLISHED = json.loads((Path(__file__).parent / "published_configs.json").read_text(encoding="utf-8"))
ASSISTANTS = [
    name for name, one in PUBLISHED.items() if name.startswith("google/") and name.endswith("-assistant")
]


@pytest.mark.parametrize("name", ASSISTANTS)
def test_a_published_configuration_makes_an_assistant_for_its_model(name: str) -> None:
    config = PUBLISHED[name]["config"]
    text = config["text_config"] | {"hidden_size": config["backbone_hidden_size"]}
    assert assistant.PUBLISHED.describes(config)
    ends = TargetEnds(*[lambda any_: any_] * 4)
    target = Target(
        "its model",
        {"model_type": "gemma4", "text_config": text},
        30,
        config["text_config"]["vocab_size"],
        ends,
    )
    head: Any = assistant.PUBLISHED.make(config, target, ())
    arrays: Any = dict(tree_flatten(head.parameters()))
    is_routed = config["use_ordered_embeddings"]
    assert [layer.self_attn.is_sliding for layer in head.layers] == [True, True, True, False]
    # As many as are published, less the output head that is the embedding.
    assert len(arrays) == 4 * 11 + 4 + 2 * is_routed
    assert ("masked_embedding.token_ordering" in arrays) == is_routed
