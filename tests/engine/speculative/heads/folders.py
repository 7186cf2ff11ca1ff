"""Write tiny models' folders with heads in every layout."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests.engine.speculative.heads.published import AFTER_THE_LAST, Arrays

LAYOUTS = ("shards", "model-mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors", "own folder")
"""Layouts of Qwen's heads. The others are in their models' shards, or in a folder of their own."""


def write_json(file: Path, value: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")


def save(file: Path, arrays: Arrays, writer: str | None) -> None:
    """Write arrays. writer: pt for those as published, mlx for converted ones, None for none said."""
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = {} if writer is None else {"format": writer}
    mx.save_safetensors(
        str(file), {name: mx.array(array) for name, array in arrays.items()}, metadata=metadata
    )


def converted(arrays: Arrays) -> Arrays:
    """Return Qwen's arrays as converters write them: norms with 1 added, experts in one array."""
    out = {
        name: array + 1.0 if array.ndim == 1 else array
        for name, array in arrays.items()
        if ".experts." not in name
    }
    for part in ("gate_proj", "up_proj", "down_proj"):
        names = [f"layers.0.mlp.experts.{expert}.{part}.weight" for expert in range(4)]
        if names[0] in arrays:
            out[f"layers.0.mlp.switch_mlp.{part}.weight"] = np.stack([arrays[name] for name in names])
    return out


def fused(arrays: Arrays) -> Arrays:
    """Return Qwen's arrays as Qwen3.5 publishes them: experts in one array, gate and up together."""
    stacked = converted(arrays)
    out = {name: array for name, array in arrays.items() if ".experts." not in name}
    gate, up, down = (
        stacked[f"layers.0.mlp.switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down")
    )
    out["layers.0.mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
    out["layers.0.mlp.experts.down_proj"] = down
    return out


def as_mlx_vlm_writes(family: str, arrays: Arrays) -> Arrays:
    """Return the arrays of GLM's heads under the names of the folders that mlx-vlm writes."""
    out = {}
    for name, array in arrays.items():
        name = name.replace("shared_head.norm", "shared_head_norm")
        if family == "glm_moe_dsa":
            name = f"mtp.{name}"
        elif name.startswith(("eh_proj", "enorm", "hnorm", "shared_head_norm", "embed_tokens")):
            name = f"model.{name}"
        else:
            name = f"model.mtp_block.{name}" if "shared_head" not in name else "lm_head.weight"
        out[name] = array
    return out


def write_head(folder: Path, layout: str, family: str, config: dict[str, Any], arrays: Arrays) -> Path:
    """Write a model's config.json and its head; return the folder in which the head is to be found."""
    write_json(folder / "config.json", config)
    text = config.get("text_config", config)
    if layout == "shards":
        arrays = fused(arrays) if family == "qwen3_5_moe" else arrays
        prefix = {"mimo": "model.mtp_layers.0."}.get(family, "mtp.")
        if family in AFTER_THE_LAST:
            prefix = f"model.layers.{text['num_hidden_layers']}."
        shard = {prefix + name: array for name, array in arrays.items()}
        half = len(shard) // 2
        save(folder / "model-00001-of-00002.safetensors", dict(list(shard.items())[:half]), "pt")
        save(folder / "model-00002-of-00002.safetensors", dict(list(shard.items())[half:]), "pt")
        return folder
    given = converted(arrays) if family.startswith("qwen") else arrays
    if layout == "own folder":
        own = folder / "head"
        if family in ("glm_moe_dsa", "glm4_moe_lite"):
            given = as_mlx_vlm_writes(family, arrays)
        write_json(own / "config.json", {"model_type": f"{family}_mtp", "text_config": text, "block_size": 3})
        save(own / "model.safetensors", given, "mlx")
        return own
    if layout == "mtp.safetensors":
        write_json(folder / "mtplx_runtime.json", {"arch_id": "qwen3-next-mtp"})
    save(folder / layout, {f"mtp.{name}": array for name, array in given.items()}, None)
    return folder


EAGLE_LAYOUTS = ("EAGLE", "SpecForge", "AngelSlim", "speculators", "ModelOpt", "DeepSpec")
"""Who writes EAGLE-3 heads. Those of EAGLE and AngelSlim do not say which layers they read."""


def write_eagle(folder: Path, layout: str, config: dict[str, Any], arrays: Arrays) -> Path:
    """Write a head that reads the outputs of layers 1, 3 and 4, of 8. config: see eagle_config."""
    names = {
        "EAGLE": "LlamaForCausalLM",
        "AngelSlim": "Eagle3LlamaForCausalLM",
        "speculators": "Eagle3Speculator",
        "DeepSpec": "Qwen3Eagle3Model",
    }
    config = config | {"architectures": [names.get(layout, "LlamaForCausalLMEagle3")]}
    said = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    if layout == "ModelOpt":
        said |= {"use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True}
    config["eagle_config"] = said if layout in ("SpecForge", "ModelOpt") else None
    mapped = {name: array.astype(np.int64) for name, array in arrays.items() if name == "d2t"}
    given = {name: array for name, array in arrays.items() if name != "d2t"}
    if layout == "speculators":
        draft_vocab_size, layers = config.pop("draft_vocab_size"), {**config, "rope_parameters": None}
        layers["rope_parameters"] = {"rope_type": "default", "rope_theta": layers.pop("rope_theta")}
        config = {
            "architectures": config["architectures"], "speculators_model_type": "eagle3",
            "transformer_layer_config": layers, "draft_vocab_size": draft_vocab_size,
            "norm_before_residual": False, "target_hidden_size": None, "embed_requires_grad": False,
            "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a/model"}},
        }  # fmt: skip
        given |= {
            "verifier_norm.weight": given["norm.weight"],
            "verifier_lm_head.weight": given["lm_head.weight"],
        }
    elif layout == "DeepSpec":
        config |= {"target_layer_ids": [1, 3, 4], "num_target_layers": 8, "ttt_length": 7}
        del config["draft_vocab_size"]
    elif layout != "ModelOpt":
        given = {name.replace("layers.0.", "midlayer."): array for name, array in given.items()}
        given["midlayer.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    if layout == "AngelSlim":
        config["tie_word_embeddings"] = True
    if layout not in ("ModelOpt", "DeepSpec"):
        mapped["t2d"] = np.zeros(config.get("vocab_size", 512), np.bool_)
        given["embed_tokens.weight"] = np.zeros((512, 64), np.float32)
    write_json(folder / "config.json", config)
    save(folder / "model.safetensors", given | mapped, "pt")
    return folder
