"""Tiny random folders of every architecture, with the names and configurations that published ones have.

Weights come from a seed by numpy, so that references.py and the tests write the same folders.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.engine.embedding.encoder_folders import minilm, write_modules

SIZE, INNER, HEADS, LAYERS, VOCAB = 32, 48, 4, 4, 200
BERT = {
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 96,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
CODE = {"AutoConfig": "someone/code--configuration.Config", "AutoModel": "someone/code--modeling.Model"}
"""Python code that published folders name; nothing of it is read."""
NOMIC = {
    "auto_map": CODE,
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "vocab_size": VOCAB,
    "n_embd": SIZE,
    "n_inner": INNER,
    "n_head": HEADS,
    "n_layer": LAYERS,
    "n_positions": 96,
    "layer_norm_epsilon": 1e-12,
    "activation_function": "swiglu",
    "rotary_emb_fraction": 1.0,
    "rotary_emb_base": 1000,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "qkv_proj_bias": False,
    "prenorm": False,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
NEW = BERT | {
    "auto_map": CODE,
    "model_type": "new",
    "rope_theta": 20000,
    "type_vocab_size": 1,
    "architectures": ["NewModel"],
}
FLASH = BERT | {
    "auto_map": CODE,
    "model_type": "xlm-roberta",
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
CONFIGS: dict[str, dict[str, object]] = {
    "modernbert": BERT
    | {
        "model_type": "modernbert",
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "local_attention": 16,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "classifier_pooling": "mean",
    },
    "nomic_bert": NOMIC,
    "new": NEW | {"rope_scaling": {"type": "ntk", "factor": 8.0}},
    "new-without-types": NEW | {"type_vocab_size": 0},
    "xlm-roberta-flash": FLASH,
    "jina-bert": BERT
    | {
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "num_attention_heads": 6,
        "hidden_size": 48,
    },
}
"""By architecture; ranking ones have the same with a classifier."""

_DECODER = {
    "vocab_size": 3000,
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "eos_token_id": 102,
    "tie_word_embeddings": True,
}
DECODERS: dict[str, dict[str, object]] = {
    "mistral": _DECODER | {"model_type": "mistral", "sliding_window": 8, "tie_word_embeddings": False},
    "qwen2": _DECODER
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": _DECODER | {"model_type": "qwen3", "rope_theta": 1000000.0},
    "gemma3_text": _DECODER
    | {
        "model_type": "gemma3_text",
        "use_bidirectional_attention": True,
        "sliding_window": 16,
        "_sliding_window_pattern": 3,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 16,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}
"""Models that decode, by their types. The body of all but Qwen3 is saved alone, without "model." in names."""

for _name in ("layer_norm_eps", "hidden_act"):
    CONFIGS["modernbert"].pop(_name)


class Weights(dict[str, np.ndarray]):
    """Random weights of a model, in the order in which they are asked for."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def linear(self, name: str, outs: int, ins: int, *, bias: bool = True) -> None:
        self[f"{name}.weight"] = self._random((outs, ins), 1.4 / ins**0.5)
        if bias:
            self[f"{name}.bias"] = self._random((outs,), 0.2)

    def norm(self, name: str, size: int = SIZE, *, bias: bool = True) -> None:
        self[f"{name}.weight"] = 1 + self._random((size,), 0.2)
        if bias:
            self[f"{name}.bias"] = self._random((size,), 0.2)

    def table(self, name: str, rows: int, size: int = SIZE) -> None:
        if rows:
            self[f"{name}.weight"] = self._random((rows, size), 0.5)

    def _random(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return (self._rng.normal(size=shape) * scale).astype(np.float32)


YES, NO = 2748, 2053
"""Tokens of MiniLM's tokenizer."""


def texts() -> list[list[int]]:
    """Token ids: shorter and longer than a window, two of the same length, and one token."""
    rng = np.random.default_rng(1)
    return [rng.integers(5, VOCAB, length).tolist() for length in (70, 23, 23, 9, 1)]


def write_published(folder: Path, name: str, *, ranks: bool = False, **changes: object) -> Path:
    """Write a folder of an architecture. changes: entries of its configuration to replace."""
    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm() / file, folder)
    config = {**CONFIGS, **DECODERS}[name] | changes
    if ranks:
        config |= {"architectures": ["SomeForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config))
    if name in DECODERS and not ranks:
        is_mean = name == "gemma3_text"
        write_modules(folder, {"pooling_mode": "mean" if is_mean else "lasttoken"}, "Normalize")
    save_file(
        weights_of(name, ranks=ranks, **changes), folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder


def weights_of(name: str, *, ranks: bool = False, **changes: object) -> dict[str, np.ndarray]:
    """Return the weights of an architecture by the names that published ones have."""
    weights = Weights()
    if name in DECODERS:
        _decoder(weights, DECODERS[name] | changes)
    else:
        _WRITERS[name](weights, CONFIGS[name] | changes, ranks=ranks)
    return weights


def _modernbert(weights: Weights, config: dict, *, ranks: bool) -> None:
    inside = "model." * ranks
    weights.table(f"{inside}embeddings.tok_embeddings", config["vocab_size"])
    weights.norm(f"{inside}embeddings.norm", bias=False)
    for index in range(LAYERS):
        layer = f"{inside}layers.{index}"
        if index:
            weights.norm(f"{layer}.attn_norm", bias=False)
        weights.linear(f"{layer}.attn.Wqkv", 3 * SIZE, SIZE, bias=False)
        weights.linear(f"{layer}.attn.Wo", SIZE, SIZE, bias=False)
        weights.norm(f"{layer}.mlp_norm", bias=False)
        weights.linear(f"{layer}.mlp.Wi", 2 * INNER, SIZE, bias=False)
        weights.linear(f"{layer}.mlp.Wo", SIZE, INNER, bias=False)
    weights.norm(f"{inside}final_norm", bias=False)
    if ranks:
        weights.linear("head.dense", SIZE, SIZE, bias=False)
        weights.norm("head.norm", bias=False)
        weights.linear("classifier", 1, SIZE)


def _nomic(weights: Weights, config: dict, **__: bool) -> None:
    weights.table("embeddings.word_embeddings", config["vocab_size"])
    weights.table("embeddings.token_type_embeddings", 2)
    weights.norm("emb_ln")
    for index in range(LAYERS):
        layer = f"encoder.layers.{index}"
        weights.linear(f"{layer}.attn.Wqkv", 3 * SIZE, SIZE, bias=False)
        weights.linear(f"{layer}.attn.out_proj", SIZE, SIZE, bias=False)
        weights.linear(f"{layer}.mlp.fc11", INNER, SIZE, bias=False)
        weights.linear(f"{layer}.mlp.fc12", INNER, SIZE, bias=False)
        weights.linear(f"{layer}.mlp.fc2", SIZE, INNER, bias=False)
        weights.norm(f"{layer}.norm1")
        weights.norm(f"{layer}.norm2")


def _new(weights: Weights, config: dict, *, ranks: bool) -> None:
    inside = "new." * ranks
    weights.table(f"{inside}embeddings.word_embeddings", config["vocab_size"])
    weights.table(f"{inside}embeddings.token_type_embeddings", config["type_vocab_size"])
    weights.norm(f"{inside}embeddings.LayerNorm")
    for index in range(LAYERS):
        layer = f"{inside}encoder.layer.{index}"
        weights.linear(f"{layer}.attention.qkv_proj", 3 * SIZE, SIZE)
        weights.linear(f"{layer}.attention.o_proj", SIZE, SIZE)
        weights.linear(f"{layer}.mlp.up_gate_proj", 2 * INNER, SIZE, bias=False)
        weights.linear(f"{layer}.mlp.down_proj", SIZE, INNER)
        weights.norm(f"{layer}.attn_ln")
        weights.norm(f"{layer}.mlp_ln")
    if ranks:
        weights.linear("new.pooler.dense", SIZE, SIZE)
        weights.linear("classifier", 1, SIZE)


def _flash(weights: Weights, config: dict, *, ranks: bool) -> None:
    inside = "roberta." * ranks
    weights.table(f"{inside}embeddings.word_embeddings", config["vocab_size"])
    weights.table(f"{inside}embeddings.position_embeddings", config["max_position_embeddings"])
    weights.table(f"{inside}embeddings.token_type_embeddings", 1)
    weights.norm(f"{inside}emb_ln")
    for index in range(LAYERS):
        layer = f"{inside}encoder.layers.{index}"
        weights.linear(f"{layer}.mixer.Wqkv", 3 * SIZE, SIZE)
        weights.linear(f"{layer}.mixer.out_proj", SIZE, SIZE)
        weights.linear(f"{layer}.mlp.fc1", INNER, SIZE)
        weights.linear(f"{layer}.mlp.fc2", SIZE, INNER)
        weights.norm(f"{layer}.norm1")
        weights.norm(f"{layer}.norm2")
    if ranks:
        weights.linear("classifier.dense", SIZE, SIZE)
        weights.linear("classifier.out_proj", 1, SIZE)


def _jina(weights: Weights, config: dict, *, ranks: bool) -> None:
    inside, size = "bert." * ranks, config["hidden_size"]
    weights.table(f"{inside}embeddings.word_embeddings", config["vocab_size"], size)
    weights.table(f"{inside}embeddings.token_type_embeddings", 2, size)
    weights.norm(f"{inside}embeddings.LayerNorm", size)
    for index in range(LAYERS):
        layer = f"{inside}encoder.layer.{index}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            weights.linear(f"{layer}.attention.{part}", size, size)
        weights.norm(f"{layer}.attention.output.LayerNorm", size)
        weights.linear(f"{layer}.mlp.gated_layers", 2 * INNER, size, bias=False)
        weights.linear(f"{layer}.mlp.wo", size, INNER)
        weights.norm(f"{layer}.mlp.layernorm", size)
    if ranks:
        weights.linear("bert.pooler.dense", size, size)
        weights.linear("classifier", 1, size)


def _decoder(weights: Weights, config: dict) -> None:
    kind, heads = config["model_type"], config["head_dim"] * config["num_attention_heads"]
    kept = config["head_dim"] * config["num_key_value_heads"]
    inside, has_bias = "model." * (kind == "qwen3"), kind == "qwen2"
    weights.table(f"{inside}embed_tokens", config["vocab_size"])
    for index in range(LAYERS):
        layer = f"{inside}layers.{index}"
        weights.linear(f"{layer}.self_attn.q_proj", heads, SIZE, bias=has_bias)
        weights.linear(f"{layer}.self_attn.k_proj", kept, SIZE, bias=has_bias)
        weights.linear(f"{layer}.self_attn.v_proj", kept, SIZE, bias=has_bias)
        weights.linear(f"{layer}.self_attn.o_proj", SIZE, heads, bias=False)
        for part in ("q_norm", "k_norm") if kind in ("qwen3", "gemma3_text") else ():
            weights.norm(f"{layer}.self_attn.{part}", config["head_dim"], bias=False)
        weights.linear(f"{layer}.mlp.gate_proj", INNER, SIZE, bias=False)
        weights.linear(f"{layer}.mlp.up_proj", INNER, SIZE, bias=False)
        weights.linear(f"{layer}.mlp.down_proj", SIZE, INNER, bias=False)
        around = ("pre_feedforward", "post_feedforward") if kind == "gemma3_text" else ()
        for part in ("input", "post_attention", *around):
            weights.norm(f"{layer}.{part}_layernorm", bias=False)
    weights.norm(f"{inside}norm", bias=False)


_WRITERS: dict[str, Callable[..., None]] = {
    "modernbert": _modernbert,
    "nomic_bert": _nomic,
    "new": _new,
    "new-without-types": _new,
    "xlm-roberta-flash": _flash,
    "jina-bert": _jina,
}
