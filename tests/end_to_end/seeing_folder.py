"""Write the folder of a tiny random model that sees."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

import reprise.engine.model.architectures  # noqa: F401 - mlx-lm then knows LFM2-VL
from reprise.config.model_settings import BUNDLED_MODEL
from tests.engine.vision.tiny_towers import (
    FAMILIES,
    GEMMA4_TEXT,
    LFM2_TINY,
    LFM2_TOKENS,
    random_array,
    weights_of,
)

FIRST_ID = 4096
"""The first id that the bundled tokenizer leaves free."""
WRITTEN = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n"
    "{%% if m.content is string %%}{{ m.content }}{%% else %%}"
    "{%% for p in m.content %%}{%% if p.type == 'image' %%}%s{%% else %%}{{ p.text }}{%% endif %%}"
    "{%% endfor %%}{%% endif %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
MROPE = {"type": "default", "rope_type": "default", "mrope_section": [2, 1, 1]}
INTERLEAVED = MROPE | {"mrope_interleaved": True}
QWEN = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
TOKENS = {
    "qwen3_vl": QWEN,
    "qwen3_5": QWEN,
    "qwen2_5_vl": QWEN,
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    "gemma4": ("<|image|>", "<|image>", "<image|>"),
    "mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "lfm2_vl": LFM2_TOKENS,
}
"""A family's tokens, the placeholder first."""
IN_TEMPLATE = {
    "gemma3": "<start_of_image>",
    "gemma4": "<|image|>",
    "mistral3": "[IMG]",
    "lfm2_vl": "<image>",
}
"""What a family's template writes for an image, if it is not as Qwen's."""
QWEN_NAMES = ("image_token_id", "vision_start_token_id", "vision_end_token_id", "video_token_id")
NAMES: dict[str, tuple[str, ...]] = {
    "gemma3": ("image_token_id", "boi_token_index", "eoi_token_index"),
    "gemma4": ("image_token_id", "boi_token_id", "eoi_token_id"),
    "mistral3": ("image_token_index",),
    "lfm2_vl": ("image_token_id",),
}
"""What config.json calls these tokens, if it is not as Qwen's."""
TEXTS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {"rope_scaling": INTERLEAVED},
    "qwen3_5": {
        "rope_parameters": INTERLEAVED | {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
        "full_attention_interval": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
    "qwen2_5_vl": {"rope_scaling": MROPE},
    "gemma3": {"sliding_window_pattern": 3},
    "gemma4": GEMMA4_TEXT,
}
"""What mlx-lm's classes ask for beside the sizes."""
_QWEN_SIZE = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 64 * 256}}
MAX_SIDE = 70 * 3
"""Patches of the longest side that an image of Gemma 4 has, by its tokens."""
PROCESSORS: dict[str, dict[str, Any]] = {
    "qwen3_vl": _QWEN_SIZE,
    "qwen3_5": _QWEN_SIZE,
    "qwen2_5_vl": _QWEN_SIZE,
    "gemma3": {"size": {"height": 32, "width": 32}},
    "gemma4": {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70},
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
        "vocab_size_per_layer_input": FIRST_ID + len(TOKENS[family]),
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    } | TEXTS.get(family, {})
    names = NAMES.get(family, QWEN_NAMES)
    config |= {name: FIRST_ID + index for index, name in enumerate(names)}
    config |= {"max_position_embeddings": 2048, "vocab_size": FIRST_ID + len(TOKENS[family])}
    kind, arguments = _get_classes(config)
    mx.random.seed(0)
    arrays = dict(tree_flatten(kind(arguments.from_dict(config)).parameters()))
    tower = {_converted(name): mx.array(array) for name, array in weights_of(family).items()}
    if family == "gemma4":
        # Its images are larger than those of the towers' tests.
        name = "vision_tower.patch_embedder.position_embedding_table"
        tower[name] = mx.array(random_array(name, (2, MAX_SIDE, tower[name].shape[-1])))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays | tower)
    _write(folder / "config.json", config)
    _write(folder / "preprocessor_config.json", tiny.processor | PROCESSORS[family])
    write_tokenizer(folder, TOKENS[family], IN_TEMPLATE.get(family, WRITTEN))
    return folder


def write_tokenizer(folder: Path, tokens: Sequence[str], written: str) -> None:
    """Write the bundled tokenizer with more tokens, and a chat template for messages with images.

    tokens: the texts of the tokens to add; their ids count up from FIRST_ID.
    written: the text that the template writes for an image.
    """
    tokenizer = json.loads((BUNDLED_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [
        {"id": token, "content": text} | plain for token, text in enumerate(tokens, FIRST_ID)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    shutil.copy(BUNDLED_MODEL / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE % written, encoding="utf-8")


def _converted(name: str) -> str:
    """Return an array's name as conversions to MLX have it, beside the language model's."""
    return name.removeprefix("model.").replace("visual.", "vision_tower.")


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
