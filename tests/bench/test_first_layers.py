"""`scripts/first_layers.py` makes a model of another one's first layers, which mlx-lm loads."""

import runpy
from pathlib import Path

import mlx.core as mx
from mlx_lm import load

from reprise.config.model_settings import BUNDLED_MODEL

ROOT = Path(__file__).parents[2]


def test_the_first_layers_say_what_they_say_in_the_whole_model(tmp_path: Path) -> None:
    write = runpy.run_path(str(ROOT / "scripts/first_layers.py"))["write_first_layers"]
    write(BUNDLED_MODEL, 2, tmp_path / "first")
    whole, first = load(str(BUNDLED_MODEL))[0], load(str(tmp_path / "first"))[0]
    assert len(first.layers) == 2 < len(whole.layers)
    whole.model.layers = whole.model.layers[:2]
    prompt = mx.array([[1, 2, 3, 4]])
    assert mx.array_equal(first(prompt), whole(prompt)).item()
