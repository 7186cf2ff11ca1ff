"""Find the tower of a model in its folder."""

import logging
from pathlib import Path

from reprise.engine.vision.gemma3 import Gemma3Tower
from reprise.engine.vision.gemma4 import Gemma4Tower
from reprise.engine.vision.lfm2 import Lfm2Tower
from reprise.engine.vision.pixtral import PixtralTower
from reprise.engine.vision.qwen import Qwen3Tower, Qwen25Tower
from reprise.engine.vision.tower import Config, Tower
from reprise.engine.vision.weights import read_weights

log = logging.getLogger("reprise.engine")

TOWERS: dict[str, type[Tower]] = {
    "qwen3_vl": Qwen3Tower,
    "qwen3_vl_moe": Qwen3Tower,
    "qwen3_5": Qwen3Tower,
    "qwen3_5_moe": Qwen3Tower,
    "qwen2_5_vl": Qwen25Tower,
    "gemma3": Gemma3Tower,
    "gemma4": Gemma4Tower,
    "mistral3": PixtralTower,
    "pixtral": PixtralTower,
    "lfm2_vl": Lfm2Tower,
    "lfm2-vl": Lfm2Tower,
}
"""Towers by the model_type of config.json."""


def tower_type(config: Config) -> str:
    """Return the model type that names a model's tower: that of its vision part for a llava."""
    model_type = str(config.get("model_type"))
    # What Pixtral was published as; others of the name have towers of their own.
    return str((config.get("vision_config") or {}).get("model_type")) if model_type == "llava" else model_type


def find_tower(config: Config, folder: Path, processor: Config) -> Tower | None:
    """Return the tower of a model, its weights not read yet; None if the model sees no images here.

    processor: how its images are prepared, by its folder; empty if the folder does not say.
    If a model that was made to see lacks a part of its tower, that is logged: it is served as a text model.
    """
    vision = config.get("vision_config")
    if not vision:
        return None
    model_type = tower_type(config)
    if model_type not in TOWERS:
        log.warning("this model sees no images here: the tower of %s is not known", model_type)
        return None
    if not processor:
        log.warning("this model sees no images: its folder has no preprocessor_config.json")
        return None
    weights = read_weights(folder)
    if not weights.arrays:
        log.warning("this model sees no images: its folder has no weights of a tower")
        return None
    try:
        tower = TOWERS[model_type](config, processor, weights)
        # Builds the graph of a small image, which needs every array, in its shape, and computes nothing.
        for _ in tower.slices(tower.blank((tower.merge_size, tower.merge_size))):
            pass
    # Shapes that do not fit raise whatever MLX chooses.
    except Exception as fault:
        log.warning("this model sees no images: its tower is not as expected: %s", fault)
        return None
    return tower
