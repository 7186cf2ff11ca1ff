"""A whole LFM2-VL has the logits of transformers' for text with tiles, published or converted."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from reprise.engine.interface.images import PromptImage
from reprise.engine.model.architectures import LFM2_VL_TYPES
from reprise.engine.model.files.image_processor import read_processor
from reprise.engine.vision.image_features import Sight, find_tower
from tests.engine.vision.test_towers import TOLERANCE, WRONG, features
from tests.engine.vision.tiny_towers import HALVES, LFM2_PROMPT, REFERENCES, random_array, references

STARTS = (3, 24, 29)


def published(name: str, array: mx.array) -> tuple[str, mx.array]:
    return name, array


def converted(name: str, array: mx.array) -> tuple[str, mx.array]:
    name = name.removeprefix("model.").replace("language_model.", "language_model.model.")
    return name, array.swapaxes(1, 2) if "conv.conv." in name else array


def write_model(folder: Path, layout: Any, **changes: Any) -> Path:
    told = json.loads((REFERENCES / "lfm2_vl_whole.json").read_text())
    shapes = {name: shape for name, shape in told["shapes"].items() if name != "lm_head.weight"}
    arrays = {name: mx.array(random_array(name, tuple(shape))) for name, shape in shapes.items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(told["config"] | changes))
    (folder / "preprocessor_config.json").write_text(json.dumps(HALVES))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(layout(*one) for one in arrays.items()))
    return folder


@pytest.mark.parametrize("model_type", LFM2_VL_TYPES)
@pytest.mark.parametrize("layout", [published, converted])
def test_tiles_among_text_have_the_logits_of_transformers(
    layout: Any, model_type: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", layout, model_type=model_type)
    model, config = load_model(folder)
    tower = find_tower(config, folder, read_processor(folder))
    assert tower is not None
    images = [
        PromptImage(start, len(one.states), one.grid, one.pixels.tobytes(), one.pixels.shape, b"")
        for start, one in zip(STARTS, references("lfm2_vl"), strict=True)
    ]
    sight, caches = Sight(model, tower), model.make_cache()
    ends = (*STARTS[1:], len(LFM2_PROMPT))
    spans = list(zip((0, *STARTS[1:]), ends, strict=True))
    logits = [
        sight.feed(LFM2_PROMPT, span, images, features(tower, image), caches)
        for span, image in zip(spans, images, strict=True)
    ]
    with np.load(REFERENCES / "lfm2_vl_whole.npz") as file:
        expected = file["logits"]
    found = np.array(mx.concatenate(logits, axis=1)[0])
    assert np.abs(found - expected).max() < TOLERANCE * np.abs(expected).max()
    blind = np.array(model(mx.array([LFM2_PROMPT]))[0])
    assert np.abs(blind - expected).max() > WRONG * np.abs(expected).max()
