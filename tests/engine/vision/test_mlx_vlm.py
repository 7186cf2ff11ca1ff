"""Qwen's towers compute what mlx-vlm's do, which is right there, and read what it writes."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.vision.test_towers import TOLERANCE, difference, features, image_of, load
from tests.engine.vision.tiny_towers import FAMILIES, Reference, references, write_folder


def normal(pixels: np.ndarray, processor: dict[str, object]) -> np.ndarray:
    """Return normalised patches (patches, channels * frames * side * side)."""
    mean, deviation = (np.float32(processor[key])[:, None] for key in ("image_mean", "image_std"))
    by_channel = pixels.reshape(len(pixels), 3, -1).astype(np.float32) / 255
    return ((by_channel - mean) / deviation).reshape(pixels.shape)


# Not qwen3_vl_moe: mlx-vlm's has the exact GELU where transformers has the other, and the other way round.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5", "qwen2_5_vl"])
def test_features_are_those_of_mlx_vlm(family: str, mlx_vlm: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", family)
    images = list(references(family))
    given = {f"pixels{i}": normal(one.pixels, FAMILIES[family].processor) for i, one in enumerate(images)}
    given |= {f"grid{i}": np.array(one.grid) for i, one in enumerate(images)}
    np.savez(folder / "images.npz", **given)
    script = Path(__file__).with_name("mlx_vlm_tower.py")
    environment = os.environ | {"PYTHONPATH": str(mlx_vlm)}
    subprocess.run([sys.executable, script, folder], check=True, env=environment)
    converted = mx.load(str(folder / "converted.safetensors"))
    towers = load(folder, family), load(write_folder(tmp_path / "converted", family, converted), family)
    with np.load(folder / "features.npz") as theirs:
        for index, image in enumerate(images):
            deep = sorted(name for name in theirs if name.startswith(f"{index}.deep"))
            expected = Reference(
                image.grid, image.pixels, theirs[f"{index}.states"], tuple(theirs[name] for name in deep)
            )
            for tower in towers:
                assert difference(features(tower, image_of(image)), expected) < TOLERANCE
