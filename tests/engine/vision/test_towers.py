"""Features are those of transformers' classes, from every layout of the weights, however they are cut."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.interface.images import PromptImage
from reprise.engine.model.files.image_processor import read_processor
from reprise.engine.vision import layers
from reprise.engine.vision.image_features import find_tower
from reprise.engine.vision.layers import Portion
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

KEY = mx.random.key(3)
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


def features(tower: Tower, image: PromptImage, most: int | None = None) -> Features:
    """Compute an image's features. most: units of work of a slice."""
    portion, num_done = Portion(most), 0
    slices = tower.slices(image, portion)
    while True:
        try:
            mx.eval(*next(slices))
        except StopIteration as end:
            assert num_done == sum(stage.num_units for stage in tower.stages(image.grid))
            return end.value
        num_done += portion.done


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


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_slices_of_every_size_give_the_same_bits(
    family: str, dtype: mx.Dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {name: mx.array(array).astype(dtype) for name, array in weights_of(family).items()}
    tower = load(write_folder(tmp_path / "model", family, arrays), family)
    image = image_of(max(references(family), key=lambda one: one.grid[0] * one.grid[1]))
    whole = features(tower, image)
    # Of a few rows each, and of one.
    monkeypatch.setattr(layers, "WORK", 2**13)
    for most in (1, 3, 50):
        cut = features(tower, image, most)
        for mine, theirs in zip((cut.states, *cut.deep), (whole.states, *whole.deep), strict=True):
            assert mx.array_equal(mine, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_layers_give_the_same_bits_as_slices(family: str, tmp_path: Path) -> None:
    # What a tower computed before its layers were cut.
    tower = load(write_folder(tmp_path / "model", family), family)
    weights, layers = tower.weights, tower.layers
    x = mx.random.normal((1, 300, weights[f"{layers.prefix}0.{layers.out}.weight"].shape[0]), key=KEY)
    name = f"{layers.prefix}0."
    normal = layers.norm(weights, name + layers.norms[0], x, layers.eps)
    parts = [weights.linear(name + one, normal) for one in layers.projections]
    parts = mx.split(parts[0], 3, axis=-1) if len(parts) == 1 else parts
    queries, keys, values = (one.reshape(1, 300, -1, layers.width).swapaxes(1, 2) for one in parts)
    scale = layers.width**-0.5
    if layers.norms_of_heads:
        queries, keys = (
            layers.norm(weights, name + norm, one, layers.eps)
            for norm, one in zip(layers.norms_of_heads, (queries, keys), strict=True)
        )
        values, scale = mx.fast.rms_norm(values, None, layers.eps), 1.0
    widths = [(0, 0)] * 3 + [(0, -layers.width % 64)]
    queries, keys, values = (mx.pad(one, widths) for one in (queries, keys, values))
    y = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale)
    y = y[..., : layers.width].swapaxes(1, 2).flatten(2)
    y = weights.linear(name + layers.out, y)
    after = layers.norms_after or ("", "")
    x1 = x + (layers.norm(weights, name + after[0], y, layers.eps) if layers.norms_after else y)
    normal = layers.norm(weights, name + layers.norms[1], x1, layers.eps)
    *gates, into, out = (name + one for one in layers.feed_forward)
    inner = weights.linear(into, normal)
    inner = layers.activation(weights.linear(gates[0], normal)) * inner if gates else layers.activation(inner)
    y = weights.linear(out, inner)
    expected = x1 + (layers.norm(weights, name + after[1], y, layers.eps) if layers.norms_after else y)
    portion = Portion(1)
    slices = layers.run(weights, 0, x, None, portion)
    num_slices = 0
    while True:
        try:
            mx.eval(*next(slices))
            num_slices += 1
        except StopIteration as end:
            found = end.value
            break
    assert mx.array_equal(found, expected)
    assert num_slices > 5


@pytest.mark.parametrize("family", FAMILIES)
def test_no_row_of_a_large_image_takes_more_than_grows_with_its_patches(family: str, tmp_path: Path) -> None:
    tower = load(write_folder(tmp_path / "model", family), family)
    side = 12 * tower.merge_size
    # Every image of Gemma 3 has one size.
    small, large = (
        ((side, side), (4 * side, 4 * side)) if family != "gemma3" else (2 * (tower.blank((0, 0)).grid,))
    )
    ratio = large[0] * large[1] / (small[0] * small[1])
    for one, other in zip(tower.stages(small), tower.stages(large), strict=True):
        assert (one.kind, one.together) == (other.kind, other.together) or one.kind in ("embed", "merge")
        assert other.work <= one.work * (ratio if one.kind == "attend" else 1)
        ends = []
        portion = Portion(4)
        for _ in other.run(portion, lambda start, end: ends.append((start, end)) or ()):  # noqa: B023
            start, end = ends[-1]
            least = end - start <= other.together or end == other.size
            assert least or (end - start) * other.work <= 4 * layers.WORK
        assert ends[-1][1] == other.size


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
