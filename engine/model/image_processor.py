"""Read from a model's folder how its images are cut, and how its prompts show them."""

import json
import logging
import math
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.foreign.image_sizes import GEMMA4_TOKENS, MAX_ASPECT, find_size, grid_of, num_tokens
from engine.interface.images import Cut, ImageProcessor, VisionInfo

log = logging.getLogger("reprise.engine")
CUTS: dict[str, Cut] = {
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen2_vl"), "qwen"),
    "gemma3": "gemma3",
    **dict.fromkeys(("mistral3", "pixtral"), "pixtral"),
    "gemma4": "gemma4",
}
"""How images are cut, by the model type of config.json."""
EXAMPLE = (768, 1024)
"""Height and width of the image whose tokens people are told."""
BILINEAR, BICUBIC = 2, 3
_UNLIMITED = 2**31
Json = dict[str, Any]


class _NoTokenizer:
    """Stands for a tokenizer where only sizes matter."""

    def id_to_token(self, token: int) -> str:
        return f"<{token}>"

    def token_to_id(self, _: str) -> int:
        return 0


def read_vision(config: Json, folder: Path, backend: Any = _NoTokenizer()) -> VisionInfo | None:  # noqa: B008
    """Describe how a model sees images; None if it does not, or its processor is unknown or incomplete.

    config: of config.json. backend: the model's tokenizers.Tokenizer; without it only sizes are right.
    """
    inner = _read(folder, "processor_config.json").get("image_processor")
    given = _read(folder, "preprocessor_config.json") or inner
    cut = CUTS.get(str(config.get("model_type")))
    placeholder = config.get("image_token_id", config.get("image_token_index"))
    if cut is None or not given or not isinstance(placeholder, int):
        return None
    if not has_library():
        log.warning("%s sees no images: Pillow is not installed (the extra vision)", folder.name)
        return None
    try:
        return _describe(str(config["model_type"]), _processor(cut, config, given, placeholder, backend))
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def _describe(family: str, processor: ImageProcessor) -> VisionInfo:
    extremes = (1, 1), (1, MAX_ASPECT), (MAX_ASPECT, 1)
    return VisionInfo(
        family=family,
        placeholder=processor.placeholder,
        patch_size=processor.patch,
        merge_size=processor.merge,
        min_tokens=min(count_tokens(processor, shape) for shape in extremes),
        max_tokens=_most_tokens(processor),
        example_tokens=count_tokens(processor, EXAMPLE),
        processor=processor,
    )


def has_library() -> bool:
    """Return whether Pillow is installed, without which no image can be decoded."""
    return find_spec("PIL") is not None


def count_tokens(processor: ImageProcessor, size: tuple[int, int], budget: int = _UNLIMITED) -> int:
    """Return the tokens of an image, with those that end its rows.

    size: height and width in pixels. budget: see find_size().
    """
    fields = {name: getattr(processor, name) for name in ("cut", "patch", "merge", "least", "most")}
    grid = grid_of(fields, find_size(fields, *size, "auto", budget))
    return num_tokens(fields, grid) + (0 if processor.row_end is None else grid[0] // processor.merge)


def _most_tokens(processor: ImageProcessor) -> int:
    side = processor.patch * processor.merge
    match processor.cut:
        case "qwen":
            return processor.most // side**2
        case "gemma4":
            # With high detail.
            return GEMMA4_TOKENS[-1]
    rows = math.ceil(processor.most / side)
    return rows * (rows if processor.row_end is None else rows + 1)


def _processor(cut: Cut, config: Json, given: Json, placeholder: int, backend: Any) -> ImageProcessor:
    """Put a processor together. Raises KeyError, TypeError or ValueError if something is missing."""
    vision, size, token = config["vision_config"], given.get("size") or {}, _text(backend, placeholder)
    patch, merge, least, most = _side(given.get("patch_size", vision.get("patch_size"))), 1, 0, 0
    written = shown = alone = token
    digest = sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]
    more: Json = {"digest": digest, "filter": given.get("resample", BILINEAR if cut == "gemma3" else BICUBIC)}
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
    return ImageProcessor(cut, patch, merge, least, most, placeholder, written, shown, alone, **more)


def _side(value: Any) -> int:
    return int(value["height"] if isinstance(value, dict) else value)


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


def _read(folder: Path, name: str) -> Json:
    """Return a file of the folder as JSON; empty if there is none."""
    try:
        found = json.loads((folder / name).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
