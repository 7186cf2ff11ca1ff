"""The bundled MTP head, EAGLE-3 head and DFlash drafter fit the demo model, and predict what it answers."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx.nn.layers.activations import silu
from mlx.nn.layers.base import Module
from mlx_lm.models.llama import ModelArgs, TransformerBlock

from reprise.bench.local_engine import LocalEngine
from reprise.bench.workloads import make_chats
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.demo_model.training.corpus import held_out
from reprise.engine.interface.request import DraftChoice, DraftType
from reprise.engine.speculative.costs.step_costs import StepCosts

FOLDERS = {kind: BUNDLED_MODEL / kind for kind in ("mtp", "eagle3", "dflash")}
MOST_BYTES = 5_000_000
NUM_ANSWERED = 64


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


class Answer:
    """A tool call, the demo model's greedy answer, with the outputs of its layers.

    ids: (length,) of prompt and answer, which begins at start. layers: (length, hidden) each. last: behind
    the final norm. body: the model without its output head, which is its embedding.
    """

    def __init__(self) -> None:
        model, tokenizer = mlx_lm.load(str(BUNDLED_MODEL))[:2]
        (chat,) = held_out("tool call", 1, seed=8)
        ids = tokenizer.apply_chat_template(chat.messages[:1], tools=chat.tools, add_generation_prompt=True)
        self.start, self.body = len(ids), model.model
        steps = mlx_lm.stream_generate(model, tokenizer, ids, max_tokens=NUM_ANSWERED)
        self.ids = mx.array([*ids, *(step.token for step in steps)])
        x, self.layers = self.body.embed_tokens(self.ids[None]), []
        for layer in self.body.layers:
            x = layer(x, "causal", None)
            self.layers.append(x[0])
        self.last = self.body.norm(x)[0]

    def choices(self, states: mx.array) -> list[int]:
        """Return the most likely tokens for states (count, hidden) behind a final norm."""
        chosen: list[int] = self.body.embed_tokens.as_linear(states).argmax(-1).tolist()
        return chosen


@pytest.fixture(scope="module")
def answer() -> Answer:
    made = Answer()
    assert 16 < len(made.ids) - made.start < NUM_ANSWERED
    return made


def test_together_they_are_small() -> None:
    files = [path for folder in FOLDERS.values() for path in folder.iterdir()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


@pytest.mark.parametrize("name", ["mtp", "dflash"])
def test_they_hold_neither_embedding_nor_output_head(name: str) -> None:
    weights = mx.load(str(FOLDERS[name] / "model.safetensors"))
    assert {value.dtype for value in weights.values()} == {mx.bfloat16}
    vocabulary = read_config(BUNDLED_MODEL)["vocab_size"]
    assert not [key for key, value in weights.items() if vocabulary in value.shape]


def test_the_drafter_s_configuration_fits_the_demo_model() -> None:
    target, drafter = read_config(BUNDLED_MODEL), read_config(FOLDERS["dflash"])
    same = ("hidden_size", "vocab_size", "rope_theta", "max_position_embeddings")
    assert [drafter[name] for name in same] == [target[name] for name in same]
    assert drafter["num_target_layers"] == target["num_hidden_layers"]
    assert 0 <= drafter["dflash_config"]["mask_token_id"] < target["vocab_size"]
    assert max(drafter["dflash_config"]["target_layer_ids"]) < target["num_hidden_layers"]


def test_the_mtp_head_s_layer_is_of_the_demo_model_s_kind() -> None:
    target, layer = read_config(BUNDLED_MODEL), read_config(FOLDERS["mtp"])["text_config"]
    differ = {name for name in layer if layer[name] != target.get(name)}
    assert differ == {"num_hidden_layers", "num_nextn_predict_layers"}


def test_the_mtp_head_predicts_the_token_after_the_next(answer: Answer) -> None:
    config = read_config(FOLDERS["mtp"])["text_config"]
    weights = mx.load(str(FOLDERS["mtp"] / "model.safetensors"))
    layer: Module = TransformerBlock(ModelArgs.from_dict(config))
    layer.load_weights([(k.removeprefix("layers.0."), v) for k, v in weights.items() if "layers.0." in k])
    pair = (
        norm(answer.body.embed_tokens(answer.ids[1:]), weights["pre_fc_norm_embedding.weight"]),
        norm(answer.last[:-1], weights["pre_fc_norm_hidden.weight"]),
    )
    x = mx.concatenate(pair, axis=-1) @ weights["fc.weight"].T
    made = answer.choices(norm(layer(x[None], "causal", None)[0], weights["norm.weight"]))
    first = answer.start - 1
    right = [a == b for a, b in zip(made[first:-1], answer.ids.tolist()[answer.start + 1 :], strict=True)]
    assert sum(right) / len(right) > 0.6


def test_the_eagle_head_s_configuration_fits_the_demo_model() -> None:
    target, head = read_config(BUNDLED_MODEL), read_config(FOLDERS["eagle3"])
    weights = mx.load(str(FOLDERS["eagle3"] / "model.safetensors"))
    same = ("hidden_size", "vocab_size", "rope_theta", "rms_norm_eps", "max_position_embeddings")
    assert [head[name] for name in same] == [target[name] for name in same]
    kept = weights["d2t"] + mx.arange(head["draft_vocab_size"])
    assert kept.tolist() == [token for token, is_kept in enumerate(weights["t2d"].tolist()) if is_kept]
    assert weights["lm_head.weight"].shape == (head["draft_vocab_size"], head["hidden_size"])


def test_the_eagle_head_predicts_the_token_after_the_next(answer: Answer) -> None:
    config = read_config(FOLDERS["eagle3"])
    w = mx.load(str(FOLDERS["eagle3"] / "model.safetensors"))
    read = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    state = mx.concatenate([answer.layers[at][:-1] for at in read], axis=-1) @ w["fc.weight"].T
    own = {name.removeprefix("midlayer."): array for name, array in w.items()}
    embedded = norm(answer.body.embed_tokens(answer.ids[1:]), own["input_layernorm.weight"])
    both = mx.concatenate([embedded, norm(state, own["hidden_norm.weight"])], axis=-1)
    q, k, v = (
        (both @ own[f"self_attn.{name}_proj.weight"].T)
        .reshape(1, len(both), -1, config["head_dim"])
        .transpose(0, 2, 1, 3)
        for name in "qkv"
    )
    rope = partial(mx.fast.rope, dims=config["head_dim"], traditional=False, base=config["rope_theta"])
    q, k = (rope(one, scale=1.0, offset=0) for one in (q, k))
    seen = mx.fast.scaled_dot_product_attention(q, k, v, scale=config["head_dim"] ** -0.5, mask="causal")
    x = state + seen[0].transpose(1, 0, 2).flatten(1) @ own["self_attn.o_proj.weight"].T
    inside = norm(x, own["post_attention_layernorm.weight"])
    gate, up, down = (own[f"mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
    x = x + (silu(inside @ gate) * (inside @ up)) @ down
    best = (norm(x, w["norm.weight"]) @ w["lm_head.weight"].T).argmax(-1)
    made: list[int] = (best + w["d2t"][best]).tolist()
    first = answer.start - 1
    right = [a == b for a, b in zip(made[first:-1], answer.ids.tolist()[answer.start + 1 :], strict=True)]
    assert sum(right) / len(right) > 0.6


def test_the_drafter_fills_blocks_of_masks(answer: Answer) -> None:
    config = read_config(FOLDERS["dflash"])
    ids, size = answer.ids.tolist(), config["block_size"]
    num_right, anchors = 0, range(answer.start, len(ids) - size, 3)
    for anchor in anchors:
        draft = fill_block(answer, config, anchor)
        wanted = ids[anchor + 1 : anchor + size]
        num_right += [*map(int.__eq__, draft, wanted), False].index(False)
    assert num_right / len(anchors) > 1.2


def fill_block(answer: Answer, config: dict[str, Any], anchor: int) -> list[int]:
    """Return the tokens that the drafter puts behind the one at anchor."""
    weights = mx.load(str(FOLDERS["dflash"] / "model.safetensors"))
    settings, size = config["dflash_config"], config["block_size"]
    tapped = [answer.layers[at][:anchor] for at in settings["target_layer_ids"]]
    context = norm(mx.concatenate(tapped, axis=-1) @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    ids = [answer.ids[anchor].item(), *[settings["mask_token_id"]] * (size - 1)]
    x = answer.body.embed_tokens(mx.array(ids))

    def heads(x: mx.array, name: str, start: int | None = None) -> mx.array:
        made = (x @ own[f"self_attn.{name}_proj.weight"].T).reshape(1, len(x), -1, config["head_dim"])
        if start is None:
            return made.transpose(0, 2, 1, 3)
        made = norm(made, own[f"self_attn.{name}_norm.weight"]).transpose(0, 2, 1, 3)
        return mx.fast.rope(
            made, config["head_dim"], traditional=False, base=config["rope_theta"], scale=1.0, offset=start
        )

    for at in range(config["num_hidden_layers"]):
        prefix = f"layers.{at}."
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        inside = norm(x, own["input_layernorm.weight"])
        keys = mx.concatenate([heads(context, "k", 0), heads(inside, "k", anchor)], axis=2)
        values = mx.concatenate([heads(context, "v"), heads(inside, "v")], axis=2)
        mixed = mx.fast.scaled_dot_product_attention(
            heads(inside, "q", anchor), keys, values, scale=config["head_dim"] ** -0.5
        )
        x = x + mixed[0].transpose(1, 0, 2).reshape(size, -1) @ own["self_attn.o_proj.weight"].T
        inside = norm(x, own["post_attention_layernorm.weight"])
        gate, up, down = (own[f"mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
        gated = inside @ gate
        x = x + (gated * mx.sigmoid(gated) * (inside @ up)) @ down
    return answer.choices(norm(x[1:], weights["norm.weight"]))


def norm(x: mx.array, weight: mx.array) -> mx.array:
    """Apply an RMS norm with the demo model's epsilon."""
    return mx.fast.rms_norm(x, weight, read_config(BUNDLED_MODEL)["rms_norm_eps"])


@pytest.mark.parametrize("kind", ["mtp", "eagle3", "dflash"])
def test_they_draft_for_the_server_and_change_no_answer(kind: DraftType) -> None:
    settings = Settings(draft_model=str(FOLDERS[kind]), prefix_cache_bytes=0, draft_type=kind)
    with LocalEngine(settings, StepCosts({(1, 1): 1.0}, is_learned=False)) as local:
        turns = [
            chat.turns[0]
            for name in ("records", "quotes")
            for chat in make_chats(name, 1, 1, local.count_tokens)
        ]
        choices = (DraftChoice("none"), DraftChoice(kind))
        plain, drafted = (local.answer(local.requests(turns, choice, 96, 1)) for choice in choices)
    assert [end.tokens for end in drafted] == [end.tokens for end in plain]
    num_tokens = sum(len(end.tokens) for end in drafted)
    assert num_tokens > 1.3 * sum(end.usage.drafting.num_forwards for end in drafted)
