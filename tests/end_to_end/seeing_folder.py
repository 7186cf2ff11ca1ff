"""Write the folder of a tiny random model that sees."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from bench.architectures.seeing_model import FIRST_ID, write_tokenizer
from engine.model import lfm2_vl
from tests.engine.vision.tiny_towers import FAMILIES, LFM2_TINY, LFM2_TOKENS, weights_of

lfm2_vl.register()

MROPE = {"type": "default", "rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
TOKENS = {
    "qwen3_vl": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    "mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "lfm2_vl": LFM2_TOKENS,
}
"""A family's tokens, the placeholder first."""
WRITTEN = {
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "gemma3": "<start_of_image>",
    "mistral3": "[IMG]",
    "lfm2_vl": "<image>",
}
NAMES = {
    "qwen3_vl": {
        "image_token_id": 0,
        "vision_start_token_id": 1,
        "vision_end_token_id": 2,
        "video_token_id": 3,
    },
    "gemma3": {"image_token_id": 0, "image_token_index": 0, "boi_token_index": 1, "eoi_token_index": 2},
    "mistral3": {"image_token_index": 0},
    "lfm2_vl": {"image_token_id": 0},
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 64 * 256}},
    "gemma3": {"size": {"height": 32, "width": 32}},
    "mistral3": {"patch_size": 4, "size": {"longest_edge": 64}},
    "lfm2_vl": LFM2_TINY | {"encoder_patch_size": 4, "tile_size": 32},
}


def write_seeing(folder: Path, family: str) -> Path:
    """Write a folder that a server can serve."""
    folder.mkdir(parents=True)
    tiny = FAMILIES[family]
    config: dict[str, Any] = json.loads(json.dumps(tiny.config))
    config["text_config"] |= {
        "vocab_size": FIRST_ID + len(TOKENS[family]),
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "sliding_window_pattern": 3,
    } | ({"rope_scaling": MROPE} if family.startswith("qwen") else {})
    config |= {name: FIRST_ID + index for name, index in NAMES[family].items()}
    config |= {"max_position_embeddings": 2048, "vocab_size": FIRST_ID + len(TOKENS[family])}
    kind, arguments = _get_classes(config)
    mx.random.seed(0)
    arrays = dict(tree_flatten(kind(arguments.from_dict(config)).parameters()))
    tower = {_converted(name): mx.array(array) for name, array in weights_of(family).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays | tower)
    _write(folder / "config.json", config)
    _write(folder / "preprocessor_config.json", tiny.processor | PROCESSORS[family])
    write_tokenizer(folder, TOKENS[family], WRITTEN[family])
    return folder


def _converted(name: str) -> str:
    """Return an array's name as conversions to MLX have it, beside the language model's."""
    return name.removeprefix("model.").replace("visual.", "vision_tower.")


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
