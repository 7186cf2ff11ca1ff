"""Draft with one of mlx-vlm's drafters of blocks; run with mlx-vlm on the path, in a process of its own.

    python mlx_vlm_dflash.py FOLDER

FOLDER has a drafter's config.json, and inputs.safetensors with the target's embedding and output head, its
states, the tokens, and how many positions each round commits. The drafter's random weights are written as
model.safetensors, what it drafts as drafts.safetensors.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn import Embedding
from mlx.utils import tree_flatten, tree_unflatten
from mlx_vlm.utils import get_model_and_args

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
given = mx.load(str(folder / "inputs.safetensors"))
architecture, _ = get_model_and_args(config)
model = architecture.Model(architecture.ModelConfig.from_dict(config))
mx.random.seed(7)
arrays = [
    (name, mx.random.normal(array.shape) * 0.3 + ("norm" in name or "layer_scalar" in name))
    for name, array in tree_flatten(model.parameters())
]
model.update(tree_unflatten(arrays))
mx.save_safetensors(str(folder / "model.safetensors"), dict(arrays))
if getattr(model, "embed_tokens", None) is None:
    embedding = Embedding(*given["embedding"].shape)
    embedding.weight = given["embedding"]
    model.embed_tokens, model.lm_head = embedding, lambda states: states @ given["output"].T
if hasattr(attention := type(model.layers[0].self_attn), "_project_kv") and config.get("attention_k_eq_v"):

    def project(self: Any, x: mx.array) -> tuple[mx.array, mx.array]:
        """Return keys and values, with the norm of the values that DeepSpec trains and mlx-vlm leaves out."""
        keys = self.k_proj(x)
        heads = keys.reshape(*x.shape[:2], -1, self.head_dim)
        return keys, mx.fast.rms_norm(heads, None, self.k_norm.eps).reshape(keys.shape)

    attention._project_kv = project
# A shortcut that fails where keys are values, too, as in Gemma 4.
type(model)._project_context_kv = lambda *_: None
cache, drafts, position = model.make_cache(), [], 0
for num in given["rounds"].tolist():
    end = position + num
    drafted = model.draft_block(
        int(given["tokens"][end]), given["states"][:, position:end], cache, int(given["num"]) + 1,
        lambda logits: mx.argmax(logits, axis=-1),
    )  # fmt: skip
    drafts.append(drafted[0])
    position = end
mx.save_safetensors(str(folder / "drafts.safetensors"), {"drafts": mx.stack(drafts)})
