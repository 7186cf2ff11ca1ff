"""Features are those of transformers' classes, from every layout of the weights, however they are cut."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.interface.images import PromptImage
from reprise.engine.model.files.image_processor import read_processor
from reprise.engine.vision.finding import find_tower
from reprise.engine.vision.tower import Features, Tower
from tests.engine.vision.tiny_towers import (
    FAMILIES,
    Reference,
    references,
    weights_of,
    write_folder,
)

TOLERANCE = 1e-4
"""Of the largest number, in float32."""

PARTS = ("weight", "scales", "biases")

WRONG = 0.01
"""What a fault makes of it at least."""


def load(folder: Path, family: str) -> Tower:
    tower = find_tower(FAMILIES[family].config, folder, read_processor(folder))
    assert tower is not None
    return tower


def image_of(reference: Reference, pixels: np.ndarray | None = None) -> PromptImage:
    pixels = reference.pixels if pixels is None else pixels
    return PromptImage(0, len(reference.states), reference.grid, pixels.tobytes(), pixels.shape, b"")


def features(tower: Tower, image: PromptImage, evaluated: Callable[[int], bool] = lambda _: True) -> Features:
    """Compute an image's features. evaluated: says after which slices it is waited for."""
    slices = tower.slices(image)
    index = 0
    while True:
        try:
            arrays = next(slices)
        except StopIteration as end:
            assert index == tower.num_slices
            return end.value
        if evaluated(index):
            mx.eval(*arrays)
        index += 1


def difference(found: Features, reference: Reference) -> float:
    """Return the largest difference of any number, as a share of the largest number."""
    expected = (reference.states, *reference.deep)
    got = (found.states, *found.deep)
    assert len(got) == len(expected)
    return max(
        float(np.abs(np.array(mine.astype(mx.float32)) - theirs).max() / np.abs(theirs).max())
        for mine, theirs in zip(got, expected, strict=True)
    )


def largest_difference(tower: Tower, family: str) -> float:
    return max(difference(features(tower, image_of(image)), image) for image in references(family))


@pytest.mark.parametrize("names", ["published", "modules"])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_those_of_transformers(family: str, names: str, tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", family, weights_of(family, names)), family)
    assert largest_difference(tower, family) < TOLERANCE
    for image in references(family):
        assert tower.num_tokens(image.grid) == len(image.states)


@pytest.mark.parametrize("family", FAMILIES)
def test_slices_of_every_size_give_the_same_bits(family: str, tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", family), family)
    image = image_of(next(references(family)))
    whole = features(tower, image, lambda _: False)
    for size in range(1, tower.num_slices):
        cut = features(tower, image, lambda index, size=size: index % size == 0)
        for mine, theirs in zip((cut.states, *cut.deep), (whole.states, *whole.deep), strict=True):
            assert mx.array_equal(mine, theirs)


def converted(family: str) -> dict[str, np.ndarray]:
    """Return a tower's arrays as mlx-vlm writes them: other names, and channels behind the pixels."""
    arrays = {}
    for name, array in weights_of(family).items():
        plain = name.removeprefix("model.")
        plain = plain.replace("visual.", "vision_tower.") if plain.startswith("visual.") else plain
        arrays[plain] = np.moveaxis(array, 1, -1).copy() if array.ndim > 3 else array
    return arrays


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_folder_has_the_same_features(family: str, tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", family, converted(family)), family)
    assert largest_difference(tower, family) < TOLERANCE


def quantised(arrays: dict[str, np.ndarray]) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """Quantise what a converter quantises, to 4 and 8 bits; also return what that is in float32."""
    packed, plain = {}, {}
    for index, (name, value) in enumerate(arrays.items()):
        array = mx.array(value)
        layer, _, kind = name.rpartition(".")
        if kind != "weight" or array.ndim != 2 or array.shape[-1] % 32:
            packed[name] = plain[name] = array
            continue
        how = {"group_size": 32, "bits": 8 if index % 3 else 4}
        parts = mx.quantize(array, **how)
        packed |= {f"{layer}.{part}": piece for part, piece in zip(PARTS, parts, strict=True)}
        plain[name] = mx.dequantize(*parts, **how)
    return packed, plain


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantised_tower_computes_what_its_numbers_say(family: str, tmp_path: Path) -> None:
    packed, plain = (
        load(write_folder(tmp_path / kind, family, arrays), family)
        for kind, arrays in zip(("packed", "plain"), quantised(converted(family)), strict=True)
    )
    assert any(name.endswith(".scales") for name in packed.weights.arrays)
    image = next(references(family))
    exact = features(plain, image_of(image))
    states, deep = np.array(exact.states), tuple(map(np.array, exact.deep))
    expected = Reference(image.grid, image.pixels, states, deep)
    assert difference(features(packed, image_of(image)), expected) < TOLERANCE


def transposed(reference: Reference) -> Reference:
    (rows, columns), pixels = reference.grid, reference.pixels
    pixels = pixels.swapaxes(1, 2).copy() if rows == columns else pixels
    return Reference((columns, rows), pixels, reference.states, reference.deep)


def reordered(reference: Reference) -> Reference:
    pixels = reference.pixels[:, ::-1] if reference.pixels.ndim == 3 else reference.pixels
    pixels = pixels if pixels is not reference.pixels else reference.pixels[::-1]
    return Reference(reference.grid, pixels.copy(), reference.states, reference.deep)


@pytest.mark.parametrize("fault", [transposed, reordered])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_grid_or_order_shows(
    family: str, fault: Callable[[Reference], Reference], tmp_path: Path
) -> None:
    tower = load(write_folder(tmp_path / "model", family), family)
    wrong = fault(next(references(family)))
    try:
        found = features(tower, image_of(wrong))
    except ValueError:
        return
    assert difference(found, wrong) > WRONG
