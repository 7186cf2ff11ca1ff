"""Tiny random towers of every family, and what transformers computes with them.

references/ is written by make_references.py. Weights are not in it: they follow from their names and shapes.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

REFERENCES = Path(__file__).parent / "references"
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}
QWEN_VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 36,
    "hidden_act": "gelu_pytorch_tanh",
}
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 255}
CLIP = HALVES | {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PLAIN = {"do_normalize": False, "image_mean": [0.0] * 3, "image_std": [1.0] * 3, "rescale_factor": 1 / 255}
QWEN_GRIDS = ((4, 6), (10, 2), (2, 16))


@dataclass(frozen=True)
class Family:
    """A tiny model. config, processor: of the folder's files. grids: of the images."""

    config: dict[str, object]
    processor: dict[str, object]
    grids: tuple[tuple[int, int], ...] = QWEN_GRIDS


def _qwen3(model_type: str, vision: dict[str, object], text: dict[str, object]) -> Family:
    vision = QWEN_VISION | {"model_type": f"{model_type}_vision"} | vision
    text = TEXT | {"model_type": f"{model_type}_text"} | text
    ids = {"image_token_id": 50, "video_token_id": 51, "vision_start_token_id": 52, "vision_end_token_id": 53}
    config = {"model_type": model_type, "vision_config": vision, "text_config": text} | ids
    return Family(config, HALVES)


QWEN25_VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
    "window_size": 16,
    "fullatt_block_indexes": [1],
    "hidden_act": "silu",
    "model_type": "qwen2_5_vl",
}
QWEN25 = Family(
    {
        "model_type": "qwen2_5_vl",
        "vision_config": QWEN25_VISION,
        "text_config": TEXT | {"model_type": "qwen2_5_vl_text"},
        "image_token_id": 50,
        "video_token_id": 51,
        "vision_start_token_id": 52,
        "vision_end_token_id": 53,
    },
    CLIP,
    ((4, 6), (10, 2), (8, 8)),
)
SIGLIP = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
    "image_size": 32,
    "vision_use_head": False,
    "model_type": "siglip_vision_model",
}
GEMMA3 = Family(
    {
        "model_type": "gemma3",
        "vision_config": SIGLIP,
        "text_config": TEXT | {"model_type": "gemma3_text"},
        "image_token_id": 50,
        "image_token_index": 50,
        "mm_tokens_per_image": 4,
    },
    HALVES,
    ((8, 8),) * 2,
)


def _gemma4(**vision: object) -> Family:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 24,
        "model_type": "gemma4_vision",
    }
    text = TEXT | {"model_type": "gemma4_text", "vocab_size_per_layer_input": 64}
    text |= {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    config = {
        "model_type": "gemma4",
        "vision_config": sizes | vision,
        "text_config": text,
        "image_token_id": 50,
    }
    return Family(config | {"audio_config": None}, PLAIN, ((6, 9), (15, 3), (3, 21)))


GEMMA4_TEXT = {
    "hidden_size_per_layer_input": 8,
    "sliding_window": 16,
    "num_kv_shared_layers": 0,
    "global_head_dim": 8,
    "pad_token_id": 0,
}
GEMMA4_PROMPT = [2, 5, 7, *[50] * 6, 9, 11, 12, 13]
"""Text around an image of six tokens."""

LFM2_PROMPT = [2, 5, 7, *[50] * 20, 9, *[50] * 4, 11, *[50] * 8, 13, 12]
"""Text around three tiles."""
LFM2_TINY = {
    "encoder_patch_size": 2,
    "min_image_tokens": 4,
    "max_image_tokens": 16,
    "tile_size": 16,
}
"""Settings of a processor that cuts small images into tiles."""
LFM2_TOKENS = (
    "<image>",
    "<|image_start|>",
    "<|image_end|>",
    "<|img_thumbnail|>",
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)),
)
LFM2_SIZES = ((20, 24), (24, 40), (50, 18), (8, 90), (5, 7))
"""Heights and widths of images that it cut."""


def _pixtral(model_type: str, **more: object) -> Family:
    vision = {
        "model_type": "pixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "patch_size": 4,
        "image_size": 64,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
    }
    text = TEXT | {"model_type": "mistral", "rms_norm_eps": 1e-5}
    config = {"model_type": model_type, "vision_config": vision, "text_config": text, "image_token_index": 10}
    return Family(config | more, CLIP)


def _lfm2(**more: object) -> Family:
    vision = {
        "model_type": "siglip2_vision_model",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "patch_size": 4,
        "num_patches": 36,
        "vision_use_head": False,
    }
    text = TEXT | {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"]}
    config = {"model_type": "lfm2_vl", "vision_config": vision, "text_config": text, "image_token_id": 50}
    # Larger and smaller than the table of positions, and both.
    return Family(config | {"projector_hidden_size": 96} | more, HALVES, ((8, 10), (4, 4), (2, 16)))


EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
FAMILIES = {
    "qwen3_vl": _qwen3("qwen3_vl", {"deepstack_visual_indexes": [0, 2]}, {}),
    "qwen3_vl_moe": _qwen3("qwen3_vl_moe", {"deepstack_visual_indexes": [1]}, EXPERTS),
    "qwen3_5": _qwen3("qwen3_5", {}, {}),
    "qwen3_5_moe": _qwen3("qwen3_5_moe", {}, EXPERTS),
    "qwen2_5_vl": QWEN25,
    "gemma3": GEMMA3,
    "gemma4": _gemma4(),
    "gemma4_clipped": _gemma4(use_clipped_linears=True, standardize=True),
    "mistral3": _pixtral("mistral3", spatial_merge_size=2),
    "pixtral": _pixtral("pixtral", vision_feature_select_strategy="full", multimodal_projector_bias=True),
    "lfm2_vl": _lfm2(),
    "lfm2_vl_plain": _lfm2(projector_use_layernorm=False, projector_bias=False),
}


@dataclass(frozen=True)
class Reference:
    """What transformers makes of an image. pixels: uint8. deep: the states for the model's first layers."""

    grid: tuple[int, int]
    pixels: np.ndarray
    states: np.ndarray
    deep: tuple[np.ndarray, ...]


def references(family: str) -> Iterator[Reference]:
    """Yield what transformers made of each of a family's images."""
    with np.load(REFERENCES / f"{family}.npz") as file:
        for index, grid in enumerate(FAMILIES[family].grids):
            deep = sorted(name for name in file if name.startswith(f"{index}.deep"))
            yield Reference(
                grid, file[f"{index}.pixels"], file[f"{index}.states"], tuple(file[name] for name in deep)
            )


def random_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the random array of a tower that transformers calls so."""
    if name.endswith(("_min", "_max")):
        return np.full(shape, -2 if name.endswith("_min") else 2, np.float32)
    values = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype(np.float32)
    return values * np.float32(0.2) + np.float32("norm" in name and name.endswith("weight"))


def weights_of(family: str, names: str = "published") -> dict[str, np.ndarray]:
    """Return a tower's arrays, by the names of published files or those that modules of transformers have."""
    told = json.loads((REFERENCES / f"{family}.json").read_text())
    return {
        own if names == "modules" else published: random_array(own, tuple(shape))
        for published, (own, shape) in told.items()
    }


def write_folder(folder: Path, family: str, arrays: dict[str, Any] | None = None) -> Path:
    """Write a model folder that has a tower, and no language model. arrays: of NumPy or MLX."""
    # What writes the references needs no MLX.
    import mlx.core as mx

    folder.mkdir(parents=True)
    tiny = FAMILIES[family]
    (folder / "config.json").write_text(json.dumps(tiny.config))
    (folder / "preprocessor_config.json").write_text(json.dumps(tiny.processor))
    arrays = weights_of(family) if arrays is None else arrays
    mx.save_safetensors(
        str(folder / "model.safetensors"), {name: mx.array(array) for name, array in arrays.items()}
    )
    return folder
