"""Make a draft model of a model's first layers and its own head: `scripts/first_layers.py SOURCE LAYERS DIR`.

It exits early instead of being trained, so it shares the vocabulary and little else; docs/tried.md has what
it brings.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import mlx.core as mx

LAYER = re.compile(r"model\.layers\.(\d+)\.")


def write_first_layers(source: Path, num_layers: int, folder: Path) -> None:
    """Write a model of the first num_layers layers of source into folder; both are in mlx-lm's format."""
    weights = {
        name: weight
        for file in sorted(source.glob("*.safetensors"))
        for name, weight in dict(mx.load(str(file))).items()
        if not (layer := LAYER.match(name)) or int(layer[1]) < num_layers
    }
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.startswith("model"):
            shutil.copy(file, folder)
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


if __name__ == "__main__":
    write_first_layers(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
