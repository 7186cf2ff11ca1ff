"""Read a model's image preprocessing from its folder: sizes, tiles, and the tokens in prompts."""

import json
import math
from hashlib import sha256
from pathlib import Path
from typing import Any

from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.images import (
    GEMMA4_TOKENS,
    MAX_ASPECT,
    Cut,
    ImageProcessor,
    Tiles,
    VisionInfo,
    find_size,
    find_tiles,
    grid_of,
    num_tile_tokens,
    num_tokens,
)
from reprise.engine.model.files.folder_reader import read_object
from reprise.engine.vision.families import tower_type

CUTS: dict[str, Cut] = {
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen2_vl"), "qwen"),
    "gemma3": "gemma3",
    **dict.fromkeys(("mistral3", "pixtral"), "pixtral"),
    "gemma4": "gemma4",
    **dict.fromkeys(("lfm2_vl", "lfm2-vl"), "lfm2"),
}
"""How images are cut, by the model type of config.json."""
EXAMPLE = (768, 1024)
"""Height and width of the example image."""
BILINEAR, BICUBIC = 2, 3
_UNLIMITED = 2**31
MAX_TILES = 64
"""Maximum number of tiles of an image that a processor may name. LFM2-VL has 10."""
MAX_EDGE = 2**16
"""Maximum pixels of an edge, and of a patch, that a processor may name."""
_LFM2 = {
    "encoder_patch_size": 16,
    "downsample_factor": 2,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "tile_size": 512,
    "min_tiles": 2,
    "max_tiles": 10,
    "max_pixels_tolerance": 2.0,
    "do_image_splitting": True,
    "use_thumbnail": True,
}
"""What LFM2-VL's processor has where its file says nothing."""
Json = dict[str, Any]


class _NoTokenizer:
    """Stands in for a tokenizer where only sizes matter."""

    def id_to_token(self, token: int) -> str:
        return f"<{token}>"

    def token_to_id(self, _: str) -> int:
        return 0


def read_vision(config: Json, folder: Path, backend: Any = _NoTokenizer()) -> VisionInfo | None:  # noqa: B008
    """Describe how a model encodes images; None if it does not, or its processor is unknown or incomplete.

    config: its config.json. backend: the model's tokenizers.Tokenizer; without it only sizes are right.
    Raises ModelError if a number of the processor is implausible.
    """
    inner = read_object(folder / "processor_config.json").get("image_processor")
    given = read_object(folder / "preprocessor_config.json") or inner
    family = tower_type(config)
    cut = CUTS.get(family)
    placeholder = config.get("image_token_id", config.get("image_token_index"))
    if cut is None or not given or not isinstance(placeholder, int):
        return None
    try:
        return _describe(family, _processor(cut, config, given, placeholder, backend))
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def read_processor(folder: Path) -> Json:
    """Read the image processor's settings in a model's folder; empty if there are none. Raises ModelError."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            read = read_object(folder / name)
            return read.get("image_processor") or read
    return {}


def _describe(family: str, processor: ImageProcessor) -> VisionInfo:
    extremes = (1, 1), (1, MAX_ASPECT), (MAX_ASPECT, 1)
    part_tokens = None
    if processor.tiles:
        whole = processor.most // (processor.patch * processor.merge) ** 2
        part_tokens = max(whole, num_tile_tokens(processor, processor.tiles))
    return VisionInfo(
        family=family,
        placeholder=processor.placeholder,
        patch_size=processor.patch,
        merge_size=processor.merge,
        min_tokens=min(count_tokens(processor, shape) for shape in extremes),
        max_tokens=_most_tokens(processor),
        example_tokens=count_tokens(processor, EXAMPLE),
        processor=processor,
        part_tokens=part_tokens,
    )


def count_tokens(processor: ImageProcessor, size: tuple[int, int], budget: int = _UNLIMITED) -> int:
    """Count an image's tokens, including those that end rows, without those before tiles.

    size: height and width in pixels. budget: see find_size().
    """
    grid = grid_of(processor, find_size(processor, *size, "auto", budget))
    whole = num_tokens(processor, grid) + (0 if processor.row_end is None else grid[0] // processor.merge)
    rows, columns = find_tiles(processor, *size, "auto", budget)
    if processor.tiles is None or rows * columns == 1:
        return whole
    beside = 0 if processor.tiles.whole_start is None else whole
    return rows * columns * num_tile_tokens(processor, processor.tiles) + beside


def _most_tokens(processor: ImageProcessor) -> int:
    side = processor.patch * processor.merge
    match processor.cut:
        case "qwen":
            return processor.most // side**2
        case "lfm2":
            tiles = processor.tiles
            beside = tiles.most * num_tile_tokens(processor, tiles) if tiles else 0
            return processor.most // side**2 + beside
        case "gemma4":
            # With high detail.
            return GEMMA4_TOKENS[-1]
    rows = math.ceil(processor.most / side)
    return rows * (rows if processor.row_end is None else rows + 1)


def _processor(cut: Cut, config: Json, given: Json, placeholder: int, backend: Any) -> ImageProcessor:
    """Build a processor. Raises KeyError, TypeError or ValueError if something is missing."""
    vision, size, token = config["vision_config"], given.get("size") or {}, _text(backend, placeholder)
    side = given.get("patch_size", vision.get("patch_size"))
    patch, merge, least, most = int(side["height"] if isinstance(side, dict) else side), 1, 0, 0
    written = shown = alone = token
    more: Json = {
        "digest": sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16],
        "filter": given.get("resample", BILINEAR if cut in ("gemma3", "lfm2") else BICUBIC),
    }
    match cut:
        case "qwen":
            merge = int(given.get("merge_size", vision.get("spatial_merge_size", 2)))
            least = int(given.get("min_pixels") or size["shortest_edge"])
            most = int(given.get("max_pixels") or size["longest_edge"])
            alone = f"<|vision_start|>{token}<|vision_end|>"
        case "gemma3":
            most = int(size["height"])
            patch = int(vision["patch_size"])
            merge = (most // patch) // math.isqrt(int(config.get("mm_tokens_per_image", 256)))
            start, end = (_text(backend, config[f"{name}_token_index"]) for name in ("boi", "eoi"))
            written = alone = start
            shown = f"\n\n{start}{token}{end}\n\n"
        case "pixtral":
            patch = int(vision["patch_size"])
            merge = int(config.get("spatial_merge_size", 1))
            most = int(size["longest_edge"])
            more["row_end"], more["last_end"] = (
                _token_id(backend, name) for name in ("[IMG_BREAK]", "[IMG_END]")
            )
        case "gemma4":
            merge = int(given.get("pooling_kernel_size", 3))
            most = min(int(given.get("max_soft_tokens", 280)), GEMMA4_TOKENS[-1])
            start, end = (_text(backend, config[f"{name}_token_id"]) for name in ("boi", "eoi"))
            shown = f"{start}{token}{end}"
        case "lfm2":
            told = _LFM2 | {name: value for name, value in given.items() if value is not None}
            patch, merge = int(told["encoder_patch_size"]), int(told["downsample_factor"])
            least, most = (int(told[f"{end}_image_tokens"]) * (patch * merge) ** 2 for end in ("min", "max"))
            start, end = (
                _text(backend, _token_id(backend, f"<|image_{name}|>")) for name in ("start", "end")
            )
            shown = f"{start}{token}{end}"
            more["tiles"] = _tiles(told, patch * merge, backend)
    edges = (patch, merge, most) if cut in ("gemma3", "pixtral") else (patch, merge)
    if max(edges) > MAX_EDGE:
        raise ModelError(f"its images have edges of {max(edges)} pixels; at most {MAX_EDGE} are known here")
    return ImageProcessor(cut, patch, merge, least, most, placeholder, written, shown, alone, **more)


def _tiles(told: Json, side: int, backend: Any) -> Tiles | None:
    """Return how LFM2-VL cuts large images; None if it cuts none. side: pixels of a token's side."""
    size, most = int(told["tile_size"]), int(told["max_tiles"])
    if not told["do_image_splitting"] or most < 2:
        return None
    if most > MAX_TILES:
        raise ModelError(f"its images have max_tiles {most}; at most {MAX_TILES} are known here")
    if size % side:
        raise ValueError(f"tiles of {size} pixels have no tokens of {side}")
    starts = tuple(
        tuple(_token_id(backend, f"<|img_row_{row}_col_{column}|>") for column in range(1, most // row + 1))
        for row in range(1, most + 1)
    )
    whole_start = _token_id(backend, "<|img_thumbnail|>") if told["use_thumbnail"] else None
    least, tolerance = max(2, int(told["min_tiles"])), float(told["max_pixels_tolerance"])
    return Tiles(size, least, most, tolerance, starts, whole_start)


def _text(backend: Any, token: int) -> str:
    found = backend.id_to_token(token)
    if found is None:
        raise KeyError(token)
    return str(found)


def _token_id(backend: Any, text: str) -> int:
    found = backend.token_to_id(text)
    if found is None:
        raise KeyError(text)
    return int(found)
