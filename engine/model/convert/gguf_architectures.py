"""Differences between architectures: names of tensors, and the configuration that mlx-lm reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.quants import dequantize

from reprise.engine.model.convert.gguf_file import GgufFile

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
ROPE_FREQUENCIES = "rope_freqs.weight"
"""Tensor of factors by which Llama 3 divides the frequencies of its rotation."""

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Alike in all models of Llama 3; a GGUF file has only what follows from them."""

_GEMMA_27B_LAYERS = 62


@dataclass(frozen=True)
class Architecture:
    """How models of one of llama.cpp's architectures are converted.

    model_type: the architecture's name in mlx-lm. names: a tensor's name in llama.cpp -> that in mlx-lm, both
        without block and ending. permutes: whether the rows of queries and keys are in llama.cpp's own order.
    norm_offset: to be subtracted from the norms.
    """

    model_type: str
    names: Mapping[str, str]
    permutes: bool = False
    norm_offset: int = 0


ARCHITECTURES = {
    "llama": Architecture("llama", _NAMES, permutes=True),
    "qwen2": Architecture("qwen2", _NAMES),
    "qwen3": Architecture("qwen3", _NAMES | _NORMS),
    # The file has the factor itself; mlx-lm, like the original, adds 1 to what it loads.
    "gemma3": Architecture("gemma3_text", _NAMES | _NORMS | _GEMMA_NORMS, norm_offset=1),
}


def find_architecture(gguf: GgufFile) -> Architecture:
    """Return how a file's architecture is converted. Raises ConvertError if that is not known."""
    found = ARCHITECTURES.get(gguf.architecture)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise gguf.refusal(
            f"has the architecture {gguf.architecture}, and only {known} are converted from GGUF"
        )
    return found


def make_config(gguf: GgufFile, is_tied: bool, vocab_size: int) -> dict[str, Any]:
    """Make the model's config.json, without types and quantisation. Raises ConvertError."""
    heads, size = gguf.count("attention.head_count"), gguf.count("embedding_length")
    config = {
        "model_type": find_architecture(gguf).model_type,
        "hidden_size": size,
        "num_hidden_layers": gguf.count("block_count"),
        "intermediate_size": gguf.count("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.count("attention.head_count_kv", heads),
        "head_dim": gguf.count("attention.key_length", size // heads),
        "rms_norm_eps": gguf.hyper("attention.layer_norm_rms_epsilon"),
        "rope_theta": gguf.hyper("rope.freq_base", 10_000.0),
        "max_position_embeddings": gguf.count("context_length"),
        "vocab_size": vocab_size,
        "tie_word_embeddings": is_tied,
    }
    if scaling := _rope_scaling(gguf):
        config["rope_scaling"] = scaling
    if gguf.architecture == "llama":
        config["attention_bias"] = any(tensor.name.endswith("attn_q.bias") for tensor in gguf.tensors)
    if gguf.architecture == "gemma3":
        is_27b = config["num_hidden_layers"] == _GEMMA_27B_LAYERS
        config |= {
            "query_pre_attn_scalar": config["hidden_size"] // heads if is_27b else config["head_dim"],
            "sliding_window": gguf.hyper("attention.sliding_window"),
            # Alike in all models of the family, and not in the file.
            "sliding_window_pattern": 6,
            "rope_local_base_freq": gguf.hyper("rope.freq_base_swa", 10_000.0),
        }
    return config


def _rope_scaling(gguf: GgufFile) -> dict[str, Any] | None:
    """Return how positions beyond the original context are reached; None if they are as they are."""
    factors = next((tensor for tensor in gguf.tensors if tensor.name == ROPE_FREQUENCIES), None)
    if factors is not None:
        return _llama3_scaling(gguf, dequantize(factors.data, factors.tensor_type))
    kind = gguf.hyper("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": gguf.hyper("rope.scaling.factor")}
    if kind == "linear":
        return scaling
    if kind == "yarn":
        original = gguf.hyper("rope.scaling.original_context_length")
        return scaling | {"original_max_position_embeddings": original}
    raise gguf.refusal(f"scales positions by {kind}, which is not converted")


def _llama3_scaling(gguf: GgufFile, factors: np.ndarray) -> dict[str, Any]:
    """Return the scaling of Llama 3 with these factors, (half a head,). Raises ConvertError for any other."""
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3_ROPE}
    exponents = np.arange(factors.size) / factors.size
    wavelengths = 2 * np.pi * gguf.hyper("rope.freq_base", 10_000.0) ** exponents
    low, high, original = _LLAMA3_ROPE.values()
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / scaling["factor"] + smooth), factors, rtol=1e-3):
        raise gguf.refusal("scales positions by factors that are not Llama 3's")
    return scaling
