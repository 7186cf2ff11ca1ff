"""Decode images with Pillow, whose C decoders have had exploits: the job "images" of child_script.py."""

import gc
import importlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from reprise.engine.interface.images import ImageProcessor, Tiles, find_size, find_tiles, grid_of
from reprise.engine.sandbox.child_script import FileError, from_base64

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS, MAX_CONVERTED_PIXELS = 50_000_000, 20_000_000
"""The most pixels of an image; the second of one that takes several times as much memory while it is read."""
PLAIN_MODES = ("1", "L", "P", "RGB")
"""Modes that take no more than four bytes a pixel, and one copy to convert."""
ORIENTATION = 0x0112
TURNS = {
    "2": Image.Transpose.FLIP_LEFT_RIGHT,
    "3": Image.Transpose.ROTATE_180,
    "4": Image.Transpose.FLIP_TOP_BOTTOM,
    "5": Image.Transpose.TRANSPOSE,
    "6": Image.Transpose.ROTATE_270,
    "7": Image.Transpose.TRANSVERSE,
    "8": Image.Transpose.ROTATE_90,
}
"""How to turn an image that says how the camera was held, by the number that it says."""
SIDEWAYS = (TURNS["5"], TURNS["6"], TURNS["7"], TURNS["8"])

Call = dict[str, Any]


def make_handler() -> Callable[[Call], Call]:
    """Return a function that decodes images; see decode()."""
    # Sizes are limited below, by what their formats take.
    Image.MAX_IMAGE_PIXELS = None
    _import_decoders()
    gc.freeze()

    def handle(call: Call) -> Call:
        try:
            return decode(call)
        except FileError as fault:
            return {"complaint": str(fault)}
        except MemoryError:
            return {"complaint": "takes too much memory to decode; make it smaller"}
        # The file comes from a client, and decoders raise almost anything.
        except Exception as fault:
            return {"complaint": f"cannot be decoded: {str(fault) or type(fault).__name__}"[:500]}
        finally:
            # The exception holds the failed image, which would stay in memory with the next.
            gc.collect()

    return handle


def decode(call: Call) -> Call:
    """Decode an image and cut it as the model's processor does.

    call: attached, the file in base64; processor, the fields of an ImageProcessor; detail and budget, see
        find_size(); max_pixels: for a larger image, the reply only has is_large.
    Returns parts: for each tile and the whole, the token ids that precede it, its grid and its shape; and
    attached: the pixels of all parts.
    """
    image = _open(from_base64(call.pop("attached", b"")))
    if image.width * image.height > call["max_pixels"]:
        return {"is_large": True}
    turn = TURNS.get(str(image.getexif().get(ORIENTATION)))
    height, width = image.height, image.width
    if turn in SIDEWAYS:
        height, width = width, height
    fields = call["processor"]
    processor = ImageProcessor(**fields | {"tiles": fields["tiles"] and Tiles(**fields["tiles"])})
    try:
        asked = processor, height, width, call["detail"], call["budget"]
        size, (rows, columns) = find_size(*asked), find_tiles(*asked)
    except ValueError as fault:
        raise FileError(str(fault)) from fault
    image = _as_rgb(image)
    parts: list[Any] = []
    starts: list[list[int]] = []
    tiles = processor.tiles if rows * columns > 1 else None
    if tiles:
        pixels = _resized(image, (rows * tiles.side, columns * tiles.side), turn, processor.filter)
        parts = [tile for row in np.split(pixels, rows) for tile in np.split(row, columns, axis=1)]
        starts = [[start] for row in tiles.starts[:rows] for start in row[:columns]]
    if tiles is None or tiles.whole_start is not None:
        parts.append(_resized(image, size, turn, processor.filter))
        starts.append([tiles.whole_start] if tiles and tiles.whole_start is not None else [])
    cuts = [_in_patches(pixels, processor) for pixels in parts]
    grids = [grid_of(processor, pixels.shape[:2]) for pixels in parts]
    return {
        "parts": [(start, grid, cut.shape) for start, grid, cut in zip(starts, grids, cuts, strict=True)],
        "attached": b"".join(cut.tobytes() for cut in cuts),
    }


def _resized(image: Image.Image, size: tuple[int, int], turn: Any, resampling: int) -> Any:
    """Return an image's pixels (height, width, 3), resized and upright. size: the result's height, width."""
    # Turned when it is small: a copy of the whole would take too much memory.
    height, width = size[::-1] if turn in SIDEWAYS else size
    resized = image.resize((width, height), resampling)
    return np.asarray(resized if turn is None else resized.transpose(turn))


def _open(data: bytes) -> Image.Image:
    """Read an image's header, and refuse it if it has too many pixels."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as fault:
        raise FileError("is none that can be read: send a PNG, JPEG, WEBP or GIF") from fault
    num_pixels = image.width * image.height
    is_plain = image.mode in PLAIN_MODES and image.format != "WEBP"
    is_plain = is_plain and image.info.keys().isdisjoint(("transparency", "progressive"))
    most = MAX_PIXELS if is_plain else MAX_CONVERTED_PIXELS
    if num_pixels > most:
        kind = "" if is_plain else " of this kind (WEBP, progressive, or with transparency, 16 bits or CMYK)"
        found = f"has {num_pixels / 1e6:,.1f} megapixels"
        raise FileError(f"{found}; one{kind} may have {most / 1e6:.0f}: make it smaller")
    if not num_pixels:
        raise FileError("has no pixels")
    return image


def _as_rgb(image: Image.Image) -> Image.Image:
    """Decode the first frame, transparency on white."""
    image.load()
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        covered = image.getchannel("A").point([255 - alpha for alpha in range(256)])
        image.paste((255, 255, 255, 255), mask=covered)
    elif image.mode.startswith("I"):
        # 16 bits.
        image = image.point(lambda value: value / 256).convert("L")
    return image if image.mode == "RGB" else image.convert("RGB")


def _in_patches(pixels: Any, processor: ImageProcessor) -> Any:
    """Return (height, width, 3) pixels in the order in which the family's tower reads them."""
    patch, merge = processor.patch, processor.merge
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    match processor.cut:
        case "qwen":
            cut = pixels.reshape(rows // merge, merge, patch, columns // merge, merge, patch, 3)
            return cut.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, 3 * patch * patch)
        case "gemma4" | "lfm2":
            cut = pixels.reshape(rows, patch, columns, patch, 3)
            return cut.transpose(0, 2, 1, 3, 4).reshape(rows * columns, patch * patch * 3)
    return pixels.transpose(2, 0, 1)


def _import_decoders() -> None:
    """Decode an image of each kind to import its decoder: later no file can be opened."""
    for kind in FORMATS:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, kind, exif=b"Exif\0\0" if kind != "GIF" else b"")
        image = Image.open(file, formats=FORMATS)
        image.getexif().get(ORIENTATION)
        _as_rgb(image).resize((4, 4), Image.Resampling.BICUBIC).transpose(TURNS["6"])
    # The reader of JPEG files with several pictures.
    importlib.import_module("PIL.MpoImagePlugin")
