"""Draft with mlx-vlm's EAGLE-3 head, in a process of its own: to import it changes transformers.

    python mlx_vlm_eagle.py FOLDER

It reads config.json, model.safetensors and text.npz (ids, states, num) there, and writes drafts.npy: num
tokens drafted behind each but the first of the text's.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_vlm.speculative.drafters.eagle3 import Model, ModelConfig


def main(folder: Path) -> None:
    head = Model(ModelConfig.from_dict(json.loads((folder / "config.json").read_text())))
    arrays = mx.load(str(folder / "model.safetensors"))
    head.load_weights(list(head.sanitize(arrays).items()))
    text = np.load(folder / "text.npz")
    ids, states, num = mx.array(text["ids"]), mx.array(text["states"]), int(text["num"])
    drafts = []
    for end in range(1, ids.shape[1]):
        # A target without an embedding to share: the head keeps its own.
        head.reset(None)
        last = int(ids[0, end])
        head.prefill_from_target_hidden(ids[:, :end], states[:, :end], last, None, greedy=True)
        drafts.append(head.draft_block(last, states[:, :1], None, num + 1, None, greedy=True)[0])
    np.save(folder / "drafts.npy", np.array(mx.stack(drafts)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
