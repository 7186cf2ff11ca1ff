"""Write tiny models' folders with heads in every layout."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests.engine.speculative.heads.published import Arrays

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


def write_head(folder: Path, layout: str, family: str, config: dict[str, Any], arrays: Arrays) -> Path:
    """Write a model's config.json and its head; return the folder in which the head is to be found."""
    write_json(folder / "config.json", config)
    text = config.get("text_config", config)
    if layout == "shards":
        arrays = fused(arrays) if family == "qwen3_5_moe" else arrays
        prefix = "mtp." if "fc.weight" in arrays else f"model.layers.{text['num_hidden_layers']}."
        shard = {prefix + name: array for name, array in arrays.items()}
        half = len(shard) // 2
        save(folder / "model-00001-of-00002.safetensors", dict(list(shard.items())[:half]), "pt")
        save(folder / "model-00002-of-00002.safetensors", dict(list(shard.items())[half:]), "pt")
        return folder
    given = converted(arrays) if family.startswith("qwen") else arrays
    if layout == "own folder":
        own = folder / "head"
        write_json(own / "config.json", {"model_type": f"{family}_mtp", "text_config": text, "block_size": 3})
        save(own / "model.safetensors", given, "mlx")
        return own
    if layout == "mtp.safetensors":
        write_json(folder / "mtplx_runtime.json", {"arch_id": "qwen3-next-mtp"})
    save(folder / layout, {f"mtp.{name}": array for name, array in given.items()}, None)
    return folder
