"""A whole Gemma 4 that reads an image among text has the logits of transformers' model."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from reprise.engine.interface.images import PromptImage
from reprise.engine.model.files.image_processor import read_processor
from reprise.engine.vision.image_features import find_tower
from reprise.engine.vision.language import Language
from tests.engine.vision.test_towers import TOLERANCE, WRONG, features
from tests.engine.vision.tiny_towers import (
    GEMMA4_PROMPT,
    GEMMA4_TEXT,
    PLAIN,
    REFERENCES,
    random_array,
    references,
)


def write_model(folder: Path, attention: str | None) -> Path:
    told = json.loads((REFERENCES / f"gemma4_whole_{attention}.json").read_text())
    arrays = {
        name: mx.array(random_array(name, tuple(shape)))
        for name, shape in told["shapes"].items()
        if name != "lm_head.weight"
    }
    folder.mkdir()
    config = told["config"] | {"vocab_size": told["config"]["text_config"]["vocab_size"]}
    # mlx-lm asks for what transformers leaves out.
    config["text_config"] |= GEMMA4_TEXT
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PLAIN))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    return folder


@pytest.mark.parametrize("attention", [None, "vision"])
def test_an_image_among_text_has_the_logits_of_transformers(attention: str | None, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", attention)
    model, config = load_model(folder)
    tower = find_tower(config, folder, read_processor(folder))
    assert tower is not None
    assert tower.sees_whole_image == (attention == "vision")
    seen = next(references("gemma4"))
    image = PromptImage(3, 6, seen.grid, seen.pixels.tobytes(), seen.pixels.shape, b"")
    span = 0, len(GEMMA4_PROMPT)
    language = Language(model, tower)
    logits = language.feed(GEMMA4_PROMPT, span, [image], features(tower, image), model.make_cache())
    with np.load(REFERENCES / f"gemma4_whole_{attention}.npz") as file:
        expected = file["logits"]
    assert np.abs(np.array(logits[0]) - expected).max() < TOLERANCE * np.abs(expected).max()
    with np.load(REFERENCES / f"gemma4_whole_{'vision' if attention is None else None}.npz") as file:
        other = file["logits"]
    assert np.abs(expected - other).max() > WRONG * np.abs(expected).max()
