"""A folder whose tower is known has one; any other is a text model, and the log says why."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reprise.engine.model.files.image_processor import read_processor
from reprise.engine.vision.image_features import find_tower
from tests.engine.vision.tiny_towers import CLIP, FAMILIES, weights_of, write_folder

QWEN = FAMILIES["qwen3_vl"].config


def test_a_text_model_has_no_tower_and_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_tower({"model_type": "qwen3"}, tmp_path, {}) is None
    assert not caplog.records


@pytest.mark.parametrize("model_type", ["idefics3", "llava"])
def test_an_unknown_tower_is_named(model_type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = QWEN | {"model_type": model_type, "vision_config": {"model_type": "other"}}
    assert find_tower(config, tmp_path, {}) is None
    assert "sees no images" in caplog.text
    assert ("idefics3" if model_type == "idefics3" else "other") in caplog.text


def test_a_folder_without_the_towers_weights_is_a_text_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = {"language_model.model.embed_tokens.weight": np.zeros((4, 4), np.float32)}
    folder = write_folder(tmp_path / "model", "qwen3_vl", arrays)
    assert find_tower(QWEN, folder, read_processor(folder)) is None
    assert "has no weights of a tower" in caplog.text


def test_a_folder_that_does_not_say_how_images_are_prepared_is_a_text_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_folder(tmp_path / "model", "qwen3_vl")
    (folder / "preprocessor_config.json").unlink()
    assert find_tower(QWEN, folder, read_processor(folder)) is None
    assert "has no preprocessor_config.json" in caplog.text


def without_one(arrays: dict[str, np.ndarray]) -> None:
    arrays.pop("model.visual.blocks.2.mlp.linear_fc1.weight")


def narrower(arrays: dict[str, np.ndarray]) -> None:
    name = "model.visual.merger.linear_fc2.weight"
    arrays[name] = arrays[name][:, :-1]


@pytest.mark.parametrize("damage", [without_one, narrower])
def test_a_tower_that_is_not_whole_is_a_text_model(
    damage: Callable[[dict[str, np.ndarray]], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = weights_of("qwen3_vl")
    damage(arrays)
    folder = write_folder(tmp_path / "model", "qwen3_vl", arrays)
    assert find_tower(QWEN, folder, read_processor(folder)) is None
    assert "its tower is not as expected" in caplog.text


def test_pixtral_is_found_as_the_llava_that_it_was_published_as(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "pixtral")
    tower = find_tower(FAMILIES["pixtral"].config | {"model_type": "llava"}, folder, read_processor(folder))
    assert tower is not None
    assert tower.family == "pixtral"


def test_pixels_are_normalised_as_either_file_says(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "qwen3_vl")
    for name, told in (
        ("preprocessor_config.json", CLIP),
        ("processor_config.json", {"image_processor": CLIP}),
    ):
        (folder / "preprocessor_config.json").unlink(missing_ok=True)
        (folder / name).write_text(json.dumps(told))
        tower = find_tower(QWEN, folder, read_processor(folder))
        assert tower is not None
        assert list(tower.normalization.mean) == CLIP["image_mean"]
