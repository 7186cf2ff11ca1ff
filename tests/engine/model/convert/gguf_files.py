"""Write tiny random models as llama.cpp's own converter writes them, with the bundled model's tokenizer."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, TokenType
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from mlx.utils import tree_flatten

from reprise.config.model_settings import BUNDLED_MODEL
from tests.engine.support import config_of, make_model

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
CHANGES: dict[str, dict[str, Any]] = {
    "gemma3": {"num_hidden_layers": 6, "sliding_window_pattern": 6},
    # Its heads are as wide as the hidden size says.
    "qwen2": {"tie_word_embeddings": True},
}
MODULES = {
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_MODULES = MODULES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SCALES_AT = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,), Kind.Q2_K: (80, 82), Kind.Q3_K: (108,)}
"""Where numbers of float16 stand in the blocks of types that nothing but llama.cpp writes."""


def model_of(architecture: str, **changes: Any) -> Any:
    """Make the model that write_gguf() writes in float32."""
    return make_model(MODEL_TYPES[architecture], **CHANGES.get(architecture, {}), **changes)


def tensor_name(architecture: str, name: str) -> str:
    """Return llama.cpp's name of an array of mlx-lm's."""
    *path, module, ending = name.split(".")
    block = f"blk.{path[2]}." if path[:2] == ["model", "layers"] else ""
    return f"{block}{(GEMMA_MODULES if architecture == 'gemma3' else MODULES)[module]}.{ending}"


def interleaved(rows: Any, heads: int) -> Any:
    """Order rows of queries or keys as llama.cpp has them for Llama: the halves of a head alternate."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    fields: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    **changes: Any,
) -> Path:
    """Write a model; return the path. kind: of its matrices. fields, extra: to add, or None to leave out."""
    config = config_of(MODEL_TYPES[architecture]) | CHANGES.get(architecture, {}) | changes
    writer = gguf.GGUFWriter(path, architecture)
    described = {
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "context_length": config["max_position_embeddings"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    if "head_dim" in config:
        described["attention.key_length"] = config["head_dim"]
    if architecture == "gemma3":
        described["attention.sliding_window"] = config["sliding_window"]
    named = {f"{architecture}.{name}": value for name, value in described.items()}
    for name, value in (named | tokenizer_fields() | (fields or {})).items():
        if value is not None:
            add_field(writer, name, value)
    arrays: Any = tree_flatten(model_of(architecture, **changes).parameters())
    for name, array in arrays:
        values = np.array(array.astype(mx.float32))
        if architecture == "gemma3" and "norm" in name:
            values = values + 1
        for module, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if architecture == "llama" and module in name:
                values = interleaved(values, config[heads])
        add_tensor(writer, tensor_name(architecture, name), values, kind if values.ndim > 1 else Kind.F32)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rewrite_gguf(source: Path, path: Path, kind: Kind | None, num_layers: int = 99) -> Path:
    """Write a model's file with its matrices in another type, or its first layers alone; return its path."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    layers = f"{architecture}.block_count"
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type", layers):
            writer.add_key_value(name, field.contents(), *field.types[:2])
    writer.add_uint32(layers, min(num_layers, reader.fields[layers].contents()))
    for tensor in reader.tensors:
        if tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= num_layers:
            continue
        if kind is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        add_tensor(writer, tensor.name, values, kind if values.ndim > 1 else Kind.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_field(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(name, value)


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: Kind) -> None:
    if kind in SCALES_AT:
        writer.add_tensor(name, random_blocks(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def random_blocks(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Return random bytes of as many numbers, with scales that are no larger than weights' are."""
    per_block, num_bytes = GGML_QUANT_SIZES[kind]
    shape = (values.shape[0], values.shape[1] // per_block, num_bytes)
    blocks = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    for at in SCALES_AT[kind]:
        blocks[..., at : at + 2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
    return blocks.reshape(values.shape[0], -1)


@cache
def tokenizer_fields() -> dict[str, Any]:
    """Return the fields of the bundled model's tokenizer, as if it split text as GPT-2's does."""
    written = json.loads((BUNDLED_MODEL / "tokenizer.json").read_text())
    vocabulary = written["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = dict.fromkeys((token["content"] for token in written["added_tokens"]), TokenType.CONTROL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kinds.get(token, TokenType.NORMAL)) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in written["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": vocabulary["<|im_end|>"],
        "tokenizer.chat_template": (BUNDLED_MODEL / "chat_template.jinja").read_text(),
    }
