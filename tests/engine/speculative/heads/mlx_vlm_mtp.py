"""Draft with mlx-vlm's MTP class, in a process of its own: to import it changes transformers.

    python mlx_vlm_mtp.py FOLDER OWN NUM

It lets mlx-vlm split the head from the model in FOLDER into a folder OWN. If mlx-vlm has a class for it,
it then reads text.npz in FOLDER (tokens, states, embedding, output), and writes drafts.npy: NUM tokens at
each position from 1 on.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_vlm.speculative.drafters.mtp_split import detect_mtp_splitter


def load(own: Path) -> Any:
    """Load the head in a folder; None if mlx-vlm has no class for it."""
    config = json.loads((own / "config.json").read_text())
    package = importlib.import_module(f"mlx_vlm.speculative.drafters.{config['model_type']}")
    if not hasattr(package, "Model"):
        return None
    head = package.Model(package.ModelConfig.from_dict(config))
    arrays: dict[str, mx.array] = dict(mx.load(str(own / "model.safetensors")))
    wanted = dict(tree_flatten(head.parameters()))
    # Copies of the target's embedding and output head may be left.
    head.load_weights([(name, arrays[name]) for name in wanted])
    head.eval()
    return head


def draft(head: Any, text: Any, num: int) -> np.ndarray:
    """Draft with no token ever accepted, so that every state is the target's own."""
    tokens, embedding, output = (mx.array(text[name]) for name in ("tokens", "embedding", "output"))
    states = mx.array(text["states"])[None]
    head.bind = lambda _: head
    head._input_embed, head._lm_head_fn = lambda ids: embedding[ids], lambda normed: normed @ output.T
    ways: dict[str, Any] = {"sampler": None, "greedy": True}
    head.reset(None)
    head.prefill_from_target_hidden(tokens[None, :2], states[:, :2], tokens[2:3], **ways)
    drafts = []
    for place in range(2, len(tokens)):
        drafted = head.draft_block(tokens[place : place + 1], None, None, num + 1, **ways)
        drafts.append(drafted[0].tolist())
        if place + 1 < len(tokens):
            following = [int(tokens[place + 1])]
            head.accept_verified_tokens(states[:, place : place + 1], drafted, 0, following, **ways)
    return np.array(drafts)


def main(folder: Path, own: Path, num: int) -> None:
    splitter = detect_mtp_splitter(folder)
    assert splitter is not None
    splitter.split(str(folder), str(own))
    if head := load(own):
        with np.load(folder / "text.npz") as text:
            np.save(folder / "drafts.npy", draft(head, text, num))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
