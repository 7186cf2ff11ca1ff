"""A random Qwen3-VL model, as conversions to MLX are: its tower beside the language model."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.bench.architectures.tiny_models import make_model, tiny_config
from reprise.config.model_settings import BUNDLED_MODEL

FIRST_ID = 4096
"""The first id that the bundled tokenizer leaves free."""
TOKENS = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"
WRITTEN = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n"
    "{%% if m.content is string %%}{{ m.content }}{%% else %%}"
    "{%% for p in m.content %%}{%% if p.type == 'image' %%}%s{%% else %%}{{ p.text }}{%% endif %%}"
    "{%% endfor %%}{%% endif %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
TEXT: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": FIRST_ID + len(TOKENS),
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
    "rope_scaling": {
        "type": "default", "rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True,
    },
}  # fmt: skip
VISION: dict[str, Any] = {
    "model_type": "qwen3_vl", "depth": 4, "hidden_size": 256, "intermediate_size": 1024, "num_heads": 4,
    "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 512,
    "num_position_embeddings": 2304, "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": [1, 3],
}  # fmt: skip
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2,
    "temporal_patch_size": 2, "size": {"shortest_edge": 32**2, "longest_edge": 4096**2},
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255,
}  # fmt: skip


def write_seeing_model(folder: Path) -> Path:
    """Write the model in float32, with the bundled tokenizer, into a new folder; return the folder."""
    folder.mkdir()
    ids = dict(zip(("image", "vision_start", "vision_end", "video"), range(FIRST_ID, 2**31), strict=False))
    config = tiny_config("qwen3_vl", **TEXT) | {"vision_config": VISION}
    config |= {f"{name}_token_id": token for name, token in ids.items()}
    arrays: dict[str, mx.array] = dict(tree_flatten(make_model(config).parameters()))
    arrays |= {
        # About 1 in norms, or images would hardly show.
        f"vision_tower.{name}": mx.random.normal(shape) * 0.05 + ("norm" in name)
        for name, shape in _tower_shapes()
    }
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
    write_tokenizer(folder, TOKENS, WRITTEN)
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


def _tower_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of each array of the tower."""
    width, inner, patch = VISION["hidden_size"], VISION["intermediate_size"], VISION["patch_size"]
    joined = width * VISION["spatial_merge_size"] ** 2
    linear: dict[str, tuple[int, ...]] = {
        "patch_embed.proj": (width, VISION["temporal_patch_size"], patch, patch, 3)
    }
    norms: dict[str, int] = {"merger.norm": width}
    deep = [f"deepstack_merger_list.{at}" for at in range(len(VISION["deepstack_visual_indexes"]))]
    for name in ("merger", *deep):
        linear |= {f"{name}.linear_fc1": (joined, joined)}
        linear |= {f"{name}.linear_fc2": (VISION["out_hidden_size"], joined)}
    norms |= {f"{name}.norm": joined for name in deep}
    for block in (f"blocks.{at}" for at in range(VISION["depth"])):
        norms |= {f"{block}.norm1": width, f"{block}.norm2": width}
        linear |= {f"{block}.attn.qkv": (3 * width, width), f"{block}.attn.proj": (width, width)}
        linear |= {f"{block}.mlp.linear_fc1": (inner, width), f"{block}.mlp.linear_fc2": (width, inner)}
    yield "pos_embed.weight", (VISION["num_position_embeddings"], width)
    for name, shape in (linear | {name: (size,) for name, size in norms.items()}).items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]
