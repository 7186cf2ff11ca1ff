"""A whole Gemma 4 that reads an image among text has the logits of transformers' model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from reprise.config.settings import Settings
from reprise.engine.interface.images import PromptImage
from reprise.engine.memory.prefill_plan import MIN_CHUNK_TOKENS
from reprise.engine.model.files.image_processor import read_processor
from reprise.engine.model.loading import make_loader
from reprise.engine.vision import layers
from reprise.engine.vision.image_features import Sight, find_tower
from reprise.engine.vision.layers import WORK, attend_to
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.driven import Driven
from tests.engine.support import request
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
    sight = Sight(model, tower)
    logits = sight.feed(GEMMA4_PROMPT, span, [image], features(tower, image), model.make_cache())
    with np.load(REFERENCES / f"gemma4_whole_{attention}.npz") as file:
        expected = file["logits"]
    assert np.abs(np.array(logits[0]) - expected).max() < TOLERANCE * np.abs(expected).max()
    with np.load(REFERENCES / f"gemma4_whole_{'vision' if attention is None else None}.npz") as file:
        other = file["logits"]
    assert np.abs(expected - other).max() > WRONG * np.abs(expected).max()


def test_a_step_beside_rows_attends_for_as_few_patches_of_a_large_picture_as_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = make_loader(Settings(model=str(write_seeing(tmp_path / "seeing", "gemma4"))))(None)
    assert loaded.sight
    tower, queries = loaded.sight.tower, list[int]()
    # As an image of 300x300 pixels is shown with high detail.
    image = replace(tower.blank((99, 99)), start=2, key=b"black")
    work = next(one.work for one in tower.stages(image.grid) if one.kind == "attend")

    def counted(asking: mx.array, *rest: Any) -> mx.array:
        queries.append(asking.shape[2])
        return attend_to(asking, *rest)

    monkeypatch.setattr(layers, "attend_to", counted)
    driven = Driven(loaded, max_stall_ms=0)
    told = driven.ask(request([5, 6, 7], name="text", max_tokens=500))
    driven.step_until(lambda: bool(told.text))
    prompt = [5, 6, *[tower.placeholder_id] * image.length, 7]
    driven.ask(replace(request(prompt, name="seen", max_tokens=1), images=(image,)))
    driven.step_until(lambda: bool(queries))
    for _ in range(20):
        queries.clear()
        before = len(driven.worker.members[0].tokens)
        driven.worker.step()
        assert 0 < sum(queries) * work <= MIN_CHUNK_TOKENS * WORK
        assert len(driven.worker.members[0].tokens) > before
