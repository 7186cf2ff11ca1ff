"""Compute features with mlx-vlm's tower, in a process of its own: to import it changes transformers.

    python mlx_vlm_tower.py FOLDER

It reads config.json, model.safetensors and images.npz (pixels, grid) there, and writes features.npz, and the
arrays as mlx-vlm has them, converted.safetensors.
"""

import importlib
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np


def main(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    package = importlib.import_module(f"mlx_vlm.models.{config['model_type']}")
    # As published; transformers writes another name today.
    told = config["vision_config"] | {"model_type": config["model_type"]}
    vision = package.VisionConfig.from_dict(told)
    tower = package.VisionModel(vision)
    arrays = mx.load(str(folder / "model.safetensors"))
    own = tower.sanitize({name.partition("visual.")[2]: array for name, array in arrays.items()})
    tower.load_weights(list(own.items()))
    converted = {f"vision_tower.{name}": array for name, array in own.items()}
    mx.save_safetensors(str(folder / "converted.safetensors"), converted)
    features = {}
    with np.load(folder / "images.npz") as images:
        for index in range(len(images) // 2):
            grid = mx.array([[1, *images[f"grid{index}"].tolist()]])
            # Qwen2.5's returns states alone, the others a list of deep ones, too.
            out = tower(mx.array(images[f"pixels{index}"]), grid)
            states, deep = (out, []) if isinstance(out, mx.array) else out
            features |= {f"{index}.states": np.array(states)}
            features |= {f"{index}.deep{i}": np.array(part) for i, part in enumerate(deep)}
    np.savez(folder / "features.npz", **features)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
