"""Draft with mlx-vlm's Gemma 4 assistant; run with mlx-vlm on the path, in a process of its own.

    python mlx_vlm_assistant.py FOLDER

FOLDER has an assistant's config.json, and inputs.safetensors with the target's scaled embedding, its states,
keys and values of all positions, and the tokens. The assistant's random weights are written as
model.safetensors, what it drafts at each position as drafts.safetensors.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_vlm.speculative.drafters.gemma4_assistant import Model, ModelConfig

folder = Path(sys.argv[1])
given = mx.load(str(folder / "inputs.safetensors"))
model = Model(ModelConfig.from_dict(json.loads((folder / "config.json").read_text())))
mx.random.seed(7)
arrays = [
    (name, mx.random.normal(array.shape) * 0.3 + ("norm" in name or "layer_scalar" in name))
    for name, array in tree_flatten(model.parameters())
    if "token_ordering" not in name
]
if model.masked_embedding is not None:
    arrays.append(("masked_embedding.token_ordering", mx.random.permutation(given["embedding"].shape[0])))
model.update(tree_unflatten(arrays))
mx.save_safetensors(str(folder / "model.safetensors"), dict(arrays))
model.bind(None)
model._input_embed = lambda ids: given["embedding"][ids]
drafts = []
for end in range(1, given["states"].shape[0] + 1):
    # Whole keys, of which its mask takes the window: of a window's alone it sees one less than the target.
    held = {
        kind: (given[f"{kind}.keys"][:, :, :end], given[f"{kind}.values"][:, :, :end])
        for kind in ("full_attention", "sliding_attention")
    }
    # mlx-vlm itself takes the position before.
    model.set_shared_kv(held, end, position=end, kv_valid_len=end)
    last, state = int(given["tokens"][end]), given["states"][None, end - 1 : end]
    drafted = model.draft_block(
        last, state, None, int(given["num"]) + 1, lambda logits: mx.argmax(logits, axis=-1)
    )
    drafts.append(drafted[0])
mx.save_safetensors(str(folder / "drafts.safetensors"), {"drafts": mx.stack(drafts)})
