"""Images are decoded as a model's own processor would, or refused in words."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from reprise.engine.interface.images import MAX_ASPECT, ImageProcessor, Tiles, find_size, find_tiles
from reprise.engine.sandbox.child_process import ImageDecoder, Limits
from reprise.engine.sandbox.child_script import FileError
from tests.engine.sandbox.hostile_images import FILES, SHOWN
from tests.engine.vision.tiny_towers import LFM2_SIZES, LFM2_TINY, REFERENCES

TEXTS = ("<img>", "<img>", "<img>")
QWEN = ImageProcessor("qwen", 16, 2, 65536, 16777216, 7, *TEXTS)
GEMMA3 = ImageProcessor("gemma3", 14, 4, 0, 896, 7, *TEXTS, filter=2)
PIXTRAL = ImageProcessor("pixtral", 14, 2, 0, 1540, 7, *TEXTS, row_end=8, last_end=9)
GEMMA4 = ImageProcessor("gemma4", 16, 3, 0, 280, 7, *TEXTS)
STARTS = tuple(tuple(100 + 10 * row + column for column in range(10 // (row + 1))) for row in range(10))
TILES = Tiles(512, 2, 10, 2.0, STARTS, 99)
LFM2 = ImageProcessor("lfm2", 16, 2, 64 * 32**2, 256 * 32**2, 7, *TEXTS, filter=2, tiles=TILES)
TINY_TILES = replace(TILES, side=LFM2_TINY["tile_size"])
TINY_LFM2 = replace(LFM2, patch=2, least=4 * 4**2, most=16 * 4**2, tiles=TINY_TILES)
PLAIN = {"do_rescale": False, "do_normalize": False}
SIZES = [
    (64, 64),
    (768, 1024),
    (1999, 301),
    (31, 1000),
    (5, 9),
    pytest.param((1080, 1920), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def decoder():
    decoder = ImageDecoder()
    yield decoder
    decoder.stop()


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def noise(height, width, channels=3):
    values = np.random.default_rng(height * width).integers(0, 256, (height, width, channels))
    return Image.fromarray(np.squeeze(values.astype(np.uint8)))


def decode(decoder, processor, image, **more):
    (whole,) = decoder.decode(processor, encoded(image), **more).parts
    return pixels_of(whole), whole


def pixels_of(part):
    return np.frombuffer(part.pixels, np.uint8).reshape(part.shape)


def assert_same(pixels, expected):
    expected = np.asarray(expected)
    assert pixels.shape == expected.shape
    assert (pixels == expected).all()


@pytest.mark.parametrize("size", SIZES)
def test_qwen_sees_what_its_processor_makes(decoder, size):
    image = noise(*size)
    own = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 65536, "longest_edge": 16777216}, patch_size=16, merge_size=2, **PLAIN
    )(image)
    pixels, picture = decode(decoder, QWEN, image)
    assert (1, *picture.grid) == tuple(own["image_grid_thw"][0])
    # Its two frames are the same picture.
    frames = np.asarray(own["pixel_values"]).reshape(-1, 3, 2, 256)
    assert_same(pixels.reshape(-1, 3, 256), frames[:, :, 0])
    assert (frames[:, :, 0] == frames[:, :, 1]).all()


@pytest.mark.parametrize("size", SIZES[:3])
def test_gemma_3_sees_what_its_processor_makes(decoder, size):
    image = noise(*size)
    own = Gemma3ImageProcessorPil(size={"height": 896, "width": 896}, **PLAIN)(image)
    pixels, picture = decode(decoder, GEMMA3, image)
    assert picture.grid == (64, 64)
    assert_same(pixels, own["pixel_values"][0])


@pytest.mark.parametrize("size", SIZES)
def test_pixtral_sees_what_its_processor_makes(decoder, size):
    image = noise(*size)
    own = PixtralImageProcessorPil(size={"longest_edge": 1540}, patch_size=28, **PLAIN)(image)
    pixels, picture = decode(decoder, PIXTRAL, image)
    assert tuple(side * 14 for side in picture.grid) == tuple(own["image_sizes"][0])
    assert_same(pixels, own["pixel_values"][0])


@pytest.mark.parametrize("size", SIZES)
def test_gemma_4_sees_what_its_processor_makes(decoder, size):
    image = noise(*size)
    own = Gemma4ImageProcessorPil(**PLAIN)(image)
    pixels, picture = decode(decoder, GEMMA4, image)
    assert picture.grid[0] * picture.grid[1] == 9 * own["num_soft_tokens_per_image"][0]
    assert_same(pixels, own["pixel_values"][0][: len(pixels)])


def test_lfm2_cuts_images_of_all_sizes_as_its_processor_does():
    for height, width, rows, columns, *size in json.loads((REFERENCES / "lfm2_vl_tiles.json").read_text()):
        if max(height, width) > MAX_ASPECT * min(height, width):
            continue
        asked = LFM2, height, width, "auto", 10_000
        assert (find_tiles(*asked), find_size(*asked)) == ((rows, columns), tuple(size)), (height, width)


@pytest.mark.parametrize("size", LFM2_SIZES)
def test_lfm2_sees_what_its_processor_makes_but_for_one_step_of_255(decoder, size):
    parts = decoder.decode(TINY_LFM2, encoded(noise(*size))).parts
    with np.load(REFERENCES / "lfm2_vl_tiles.npz") as file:
        own = file["x".join(map(str, size))]
    pixels = np.concatenate([pixels_of(part) for part in parts])
    assert pixels.shape == own.shape
    # It resizes with torchvision.
    assert abs(pixels.astype(int) - own).max() <= 1


def test_tiles_stand_behind_their_own_tokens_and_the_whole_is_last(decoder):
    image = encoded(noise(768, 1024))
    picture = decoder.decode(LFM2, image)
    assert picture.before == ((100,), (101,), (102,), (110,), (111,), (112,), (99,))
    assert [part.grid for part in picture.parts] == [(32, 32)] * 6 + [(26, 36)]
    assert len({part.key for part in picture.parts}) == 7
    alone = decoder.decode(replace(LFM2, tiles=replace(TILES, whole_start=None)), image)
    assert alone.before == picture.before[:-1]


@pytest.mark.parametrize("budget", [2560, 2000, 1000, 700, 400, 100, 3])
def test_tiles_and_the_whole_are_within_the_budget(decoder, budget):
    tokens = [
        sum(rows * columns // 4 for rows, columns in (part.grid for part in parts))
        for parts in (
            decoder.decode(LFM2, encoded(noise(*size)), budget=budget).parts
            for size in ((512, 1280), (768, 1024), (900, 900))
        )
    ]
    assert budget / 3 < max(tokens) <= budget


def test_low_detail_shows_no_tiles(decoder):
    picture = decoder.decode(LFM2, encoded(noise(768, 1024)), detail="low")
    assert (picture.before, picture.parts[0].grid) == (((),), (26, 36))


def open_as(decoder, data, processor=QWEN):
    """Decode a file as the server does."""
    return decoder.decode(processor, base64.b64encode(data).decode(), budget=2560)


@pytest.fixture(scope="module")
def peaks(decoder):
    """Return how much more memory than at first the processes have had, in bytes, where the system tells."""

    def read():
        children = [one for one in psutil.Process().children() if "images" in one.cmdline()]
        statuses = [Path(f"/proc/{one.pid}/status") for one in children]
        lines = [line for one in statuses if one.exists() for line in one.read_text().splitlines()]
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    decode(decoder, QWEN, noise(64, 64))
    idle = read()
    return lambda: read() - idle


@pytest.mark.parametrize("name", FILES)
def test_no_file_takes_much_memory_or_keeps_the_next_from_being_read(decoder, peaks, name):
    data = FILES[name]()
    if name in SHOWN:
        assert open_as(decoder, data)
    else:
        with pytest.raises(FileError, match=r"^(is|has|cannot|takes) "):
            open_as(decoder, data)
    assert peaks() < 400 * 2**20
    assert decode(decoder, QWEN, noise(64, 64))[1].grid == (16, 16)


def test_a_decoder_that_takes_long_is_ended():
    hasty = ImageDecoder(small=Limits(0.001, 10.0, 2**29))
    with pytest.raises(FileError, match=r"more than 0\.001 seconds"):
        open_as(hasty, base64.b64decode(encoded(noise(1500, 1500))))
    hasty.stop()


def test_more_pixels_than_a_process_may_have_are_named(decoder):
    with pytest.raises(FileError, match=r"has 400\.0 megapixels; one may have 50"):
        open_as(decoder, FILES["a PNG of 400 megapixels in 400 KB"]())
    with pytest.raises(FileError, match=r"has 21\.0 megapixels; one of this kind \(WEBP"):
        open_as(decoder, base64.b64decode(encoded(Image.new("RGBA", (7000, 3000)))))


WHITE, GREY, RED = (255, 255, 255), (128, 128, 128), (255, 0, 0)


def with_palette():
    image = Image.new("P", (64, 64), 1)
    image.putpalette([0, 0, 0, *RED])
    return image


COLOURS = {
    "transparent": (Image.new("RGBA", (64, 64), (0, 0, 255, 0)), {}, WHITE),
    "half transparent": (Image.new("RGBA", (64, 64), (0, 0, 0, 128)), {}, (127, 127, 127)),
    "grey and transparent": (Image.new("LA", (64, 64), (0, 0)), {}, WHITE),
    "palette": (with_palette(), {}, RED),
    "palette with a transparent colour": (with_palette(), {"transparency": 1}, WHITE),
    "16 bits": (Image.new("I;16", (64, 64), 128 * 256 + 77), {}, GREY),
    "black and white": (Image.new("1", (64, 64), 1), {}, WHITE),
    "grey": (Image.new("L", (64, 64), 128), {}, GREY),
}


@pytest.mark.parametrize("name", COLOURS)
def test_every_kind_of_pixel_is_shown_as_people_see_it(decoder, name):
    image, options, colour = COLOURS[name]
    pixels = np.frombuffer(
        open_as(decoder, base64.b64decode(encoded(image, **options))).parts[0].pixels, np.uint8
    )
    assert {tuple(map(int, one[:, 0])) for one in pixels.reshape(-1, 3, 256)} == {colour}


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "CMYK"])
def test_every_kind_of_file_is_read(decoder, kind):
    image = Image.new(
        "CMYK" if kind == "CMYK" else "RGB", (64, 64), (0, 255, 255, 0) if kind == "CMYK" else RED
    )
    file = encoded(image, "JPEG" if kind == "CMYK" else kind)
    pixels = np.frombuffer(open_as(decoder, base64.b64decode(file)).parts[0].pixels, np.uint8).reshape(
        -1, 3, 256
    )
    assert (abs(pixels.astype(int) - np.array(RED)[:, None]) < 4).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_the_camera_was_held(decoder, orientation):
    upright = noise(256, 512)
    exif = Image.Exif()
    exif[0x0112] = orientation
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    held = upright.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else upright
    expected = open_as(decoder, base64.b64decode(encoded(upright)))
    assert open_as(decoder, base64.b64decode(encoded(held, exif=exif))) == expected


def test_base64_may_have_lines_and_no_padding(decoder):
    data = encoded(noise(64, 64))
    expected = decoder.decode(QWEN, data)
    broken = "\n".join(data[i : i + 76] for i in range(0, len(data), 76)).rstrip("=")
    assert decoder.decode(QWEN, broken) == expected
    assert decoder.decode(QWEN, data.replace("+", "-").replace("/", "_")) == expected


def test_a_changed_pixel_changes_the_key(decoder):
    image = noise(64, 64)
    first = decode(decoder, QWEN, image)[1]
    assert decode(decoder, QWEN, image)[1].key == first.key
    assert decode(decoder, replace(QWEN, digest="other"), image)[1].key != first.key
    image.putpixel((3, 3), (1, 2, 3))
    assert decode(decoder, QWEN, image)[1].key != first.key
