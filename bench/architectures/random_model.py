"""Write random models of any architecture, large enough for forward passes to take most of a step."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from bench.architectures.tiny_models import make_model, tiny_config
from config.settings import BUNDLED_MODEL

SIZES = {
    "vocab_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    **dict.fromkeys(("hidden_size", "block_dim"), 256),
    **dict.fromkeys(("intermediate_size", "block_ff_dim"), 1024),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 256),
    "max_position_embeddings": 4096,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
CHANGES: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"] * 2},
    # Of each expert.
    "gpt_oss": {"intermediate_size": 256},
}


def write_random_model(name: str, folder: Path) -> Path:
    """Write a random model with the bundled tokenizer into a new folder, and return it.

    name: of an architecture in mlx-lm. Raises ImportError if there is none.
    """
    config = tiny_config(name, **(SIZES | CHANGES.get(name, {})))
    model = make_model(config)
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED_MODEL / file, folder)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
