"""What makes the difference in Qwen's towers, and where their tokens are."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.interface.images import PromptImage
from tests.engine.vision.test_towers import WRONG, difference, features, image_of, load
from tests.engine.vision.tiny_towers import references, write_folder


def test_positions_are_rows_and_columns_of_tokens_at_one_time(tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", "qwen3_vl"), "qwen3_vl")
    positions = tower.positions((4, 6))
    assert positions is not None
    assert positions.tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    assert positions.dtype == np.int32


def test_a_picture_without_its_repeated_frame_has_the_same_features(tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", "qwen3_vl"), "qwen3_vl")
    image = next(references("qwen3_vl"))
    once = image.pixels.reshape(len(image.pixels), 3, 2, -1)[:, :, 0].reshape(len(image.pixels), -1)
    whole, half = (features(tower, image_of(image, pixels)).states for pixels in (image.pixels, once.copy()))
    assert mx.array_equal(whole, half)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_without_interpolated_positions_the_features_differ(family: str, tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", family), family)
    image = next(references(family))
    tower.weights.arrays["pos_embed.weight"] = mx.zeros_like(tower.weights["pos_embed.weight"])
    assert difference(features(tower, image_of(image)), image) > WRONG


def test_windows_make_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = load(write_folder(tmp_path / "model", "qwen2_5_vl"), "qwen2_5_vl")
    image = list(references("qwen2_5_vl"))[-1]
    monkeypatch.setattr(tower, "whole_layers", range(tower.layers.count))
    assert difference(features(tower, image_of(image)), image) > WRONG


def test_states_for_the_first_layers_are_not_those_of_the_last(tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", "qwen3_vl"), "qwen3_vl")
    image = next(references("qwen3_vl"))
    found = features(tower, image_of(image))
    assert len(found.deep) == 2
    swapped = replace(found, deep=found.deep[::-1])
    assert difference(swapped, image) > WRONG


def test_pixels_that_do_not_fit_the_grid_are_refused(tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", "qwen3_vl"), "qwen3_vl")
    image = image_of(next(references("qwen3_vl")))
    for grid in ((4, 4), (3, 8)):
        wrong = PromptImage(0, 6, grid, image.pixels, image.shape, b"")
        with pytest.raises(ValueError, match="are no image of"):
            next(tower.slices(wrong))


@pytest.mark.parametrize("side", [8, 24, pytest.param(64, marks=pytest.mark.slow)])
def test_the_forecast_bounds_the_memory_of_slices(side: int, tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", "qwen3_vl"), "qwen3_vl")
    mx.eval(tower.arrays())
    image = tower.blank((side, side))
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    kept = features(tower, image)
    assert mx.get_peak_memory() - before < tower.forecast_bytes((side, side))
    assert len(kept.states) == side * side // 4
