"""Images are decoded as a model's own processor would, or refused in words."""

import base64
import io

import numpy as np
import pytest
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from engine.foreign.images import ImageDecoder, ImageFile
from engine.interface.images import ImageProcessor

TEXTS = ("<img>", "<img>", "<img>")
QWEN = ImageProcessor("qwen", 16, 2, 65536, 16777216, 7, *TEXTS)
GEMMA3 = ImageProcessor("gemma3", 14, 4, 0, 896, 7, *TEXTS, filter=2)
PIXTRAL = ImageProcessor("pixtral", 14, 2, 0, 1540, 7, *TEXTS, row_end=8, last_end=9)
GEMMA4 = ImageProcessor("gemma4", 16, 3, 0, 280, 7, *TEXTS)
PLAIN = {"do_rescale": False, "do_normalize": False}
SIZES = [(64, 64), (768, 1024), (1999, 301), (31, 1000), (5, 9), (1080, 1920)]


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
    picture = decoder.decode_small(processor, ImageFile(encoded(image), **more))
    return np.frombuffer(picture.pixels, np.uint8).reshape(picture.shape), picture


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
