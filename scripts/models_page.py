"""Calculate what well-known models take of a Mac's memory and write docs/models.md.

    .venv/bin/python scripts/models_page.py

Sizes come from mlx-lm's own classes, built from the shapes below and never computed; the cache of a row is
counted as `reprise info` counts it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx_lm.utils
from jinja2 import Template
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten

from reprise.engine.checkpoint import CacheInfo, find_cache

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
TEMPLATE = Path(__file__).with_suffix(".md.jinja")
GIB = 2**30
CONTEXTS = (8_192, 32_768, 131_072)
MACS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
"""Gibibytes of memory that Macs are sold with."""

SHARE = 2 / 3
"""Share of its memory that a Mac gives to Metal at least, without `reprise doctor`'s advice on the limit."""

WORKING_BYTES = GIB
"""Set aside for a step's own arrays and for the program; what they really take is measured at load."""


class Sizes(NamedTuple):
    """The sizes of a model: layers, hidden size, inner size of an MLP, heads, and heads with keys (kv)."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv: int
    dim: int


def dense(model_type: str, sizes: Sizes, vocab: int, context: int, **more: Any) -> dict[str, Any]:
    """Return a configuration with the fields that most architectures share."""
    return {
        "model_type": model_type, "num_hidden_layers": sizes.layers, "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner, "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv,
        "head_dim": sizes.dim, "vocab_size": vocab, "max_position_embeddings": context,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    } | more  # fmt: skip


def qwen3(layers: int, hidden: int, inner: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    """Return a configuration of Qwen3."""
    return dense("qwen3", Sizes(layers, hidden, inner, heads, kv, 128), 151_936, 40_960, **more)


def llama(layers: int, hidden: int, inner: int, heads: int, kv: int, dim: int, **more: Any) -> dict[str, Any]:
    """Return a configuration of Llama 3."""
    return dense("llama", Sizes(layers, hidden, inner, heads, kv, dim), 128_256, 131_072, **more)


def gemma3(sizes: Sizes, window: int) -> dict[str, Any]:
    """Return a configuration of Gemma 3's text model."""
    more = {"sliding_window": window, "sliding_window_pattern": 6, "query_pre_attn_scalar": sizes.dim,
            "rope_local_base_freq": 10_000.0, "tie_word_embeddings": True}  # fmt: skip
    return dense("gemma3_text", sizes, 262_144, 131_072, **more)


MODELS: Mapping[str, dict[str, Any]] = {
    "Qwen3 0.6B": qwen3(28, 1024, 3072, 16, 8, tie_word_embeddings=True),
    "Qwen3 1.7B": qwen3(28, 2048, 6144, 16, 8, tie_word_embeddings=True),
    "Qwen3 4B": qwen3(36, 2560, 9728, 32, 8, tie_word_embeddings=True),
    "Qwen3 4B Instruct 2507": qwen3(
        36, 2560, 9728, 32, 8, tie_word_embeddings=True, max_position_embeddings=262_144
    ),
    "Qwen3 8B": qwen3(36, 4096, 12_288, 32, 8),
    "Qwen3 14B": qwen3(40, 5120, 17_408, 40, 8),
    "Qwen3 32B": qwen3(64, 5120, 25_600, 64, 8),
    "Qwen3-Coder 30B-A3B": dense(
        "qwen3_moe", Sizes(48, 2048, 6144, 32, 4, 128), 151_936, 262_144,
        num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True,
    ),
    "Qwen3-Next 80B-A3B": dense(
        "qwen3_next", Sizes(48, 2048, 5120, 16, 2, 256), 151_936, 262_144,
        num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, decoder_sparse_step=1,
        mlp_only_layers=[], full_attention_interval=4, linear_num_value_heads=32, linear_num_key_heads=16,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
        partial_rotary_factor=0.25, norm_topk_prob=True,
    ),
    "Qwen2.5-Coder 7B": dense("qwen2", Sizes(28, 3584, 18_944, 28, 4, 128), 152_064, 32_768),
    "Qwen2.5-Coder 32B": dense("qwen2", Sizes(64, 5120, 27_648, 40, 8, 128), 152_064, 32_768),
    "Llama 3.2 1B": llama(16, 2048, 8192, 32, 8, 64, tie_word_embeddings=True),
    "Llama 3.2 3B": llama(28, 3072, 8192, 24, 8, 128, tie_word_embeddings=True),
    "Llama 3.1 8B": llama(32, 4096, 14_336, 32, 8, 128),
    "Llama 3.3 70B": llama(80, 8192, 28_672, 64, 8, 128),
    "Gemma 3 1B": gemma3(Sizes(26, 1152, 6912, 4, 1, 256), 512),
    "Gemma 3 4B": gemma3(Sizes(34, 2560, 10_240, 8, 4, 256), 1024),
    "Gemma 3 12B": gemma3(Sizes(48, 3840, 15_360, 16, 8, 256), 1024),
    "Gemma 3 27B": gemma3(Sizes(62, 5376, 21_504, 32, 16, 128), 1024),
    "Devstral 24B": dense("llama", Sizes(40, 5120, 32_768, 32, 8, 128), 131_072, 131_072),
    "gpt-oss 20B": dense(
        "gpt_oss", Sizes(24, 2880, 2880, 64, 8, 64), 201_088, 131_072,
        num_local_experts=32, num_experts_per_tok=4,
        sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 12,
    ),
    "gpt-oss 120B": dense(
        "gpt_oss", Sizes(36, 2880, 2880, 64, 8, 64), 201_088, 131_072,
        num_local_experts=128, num_experts_per_tok=4,
        sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 18,
    ),
}  # fmt: skip
"""The shapes in the models' published configurations."""

NAMES: Mapping[str, str] = {
    "Qwen3 0.6B": "Qwen3-0.6B-4bit",
    "Qwen3 1.7B": "Qwen3-1.7B-4bit",
    "Qwen3 4B": "Qwen3-4B-4bit",
    "Qwen3 4B Instruct 2507": "Qwen3-4B-Instruct-2507-4bit",
    "Qwen3 8B": "Qwen3-8B-4bit",
    "Qwen3 14B": "Qwen3-14B-4bit",
    "Qwen3 32B": "Qwen3-32B-4bit",
    "Qwen3-Coder 30B-A3B": "Qwen3-Coder-30B-A3B-Instruct-4bit",
    "Qwen3-Next 80B-A3B": "Qwen3-Next-80B-A3B-Instruct-4bit",
    "Qwen2.5-Coder 7B": "Qwen2.5-Coder-7B-Instruct-4bit",
    "Qwen2.5-Coder 32B": "Qwen2.5-Coder-32B-Instruct-4bit",
    "Llama 3.2 1B": "Llama-3.2-1B-Instruct-4bit",
    "Llama 3.2 3B": "Llama-3.2-3B-Instruct-4bit",
    "Llama 3.1 8B": "Meta-Llama-3.1-8B-Instruct-4bit",
    "Llama 3.3 70B": "Llama-3.3-70B-Instruct-4bit",
    "Gemma 3 1B": "gemma-3-1b-it-4bit",
    "Gemma 3 4B": "gemma-3-4b-it-4bit",
    "Gemma 3 12B": "gemma-3-12b-it-4bit",
    "Gemma 3 27B": "gemma-3-27b-it-4bit",
    "Devstral 24B": "Devstral-Small-2507-4bit",
    "gpt-oss 20B": "gpt-oss-20b-MXFP4-Q4",
    "gpt-oss 120B": "gpt-oss-120b-MXFP4-Q4",
}
"""Names on the hub, of the organization mlx-community."""


def cache_bytes(cache: CacheInfo, num_tokens: int) -> int:
    """Return the bytes of a row's cache after num_tokens tokens."""
    windows = sum(each * min(num_tokens, window) for each, window in cache.windows)
    return cache.fixed_bytes + cache.token_bytes * num_tokens + windows


def describe(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a model's row of the page's table. config: the model's configuration."""
    model_class, arguments = mlx_lm.utils._get_classes(config)
    model = model_class(arguments.from_dict(dict(config)))
    model.set_dtype(mx.bfloat16)
    if config["tie_word_embeddings"]:
        # Some classes have a head until they load weights without one.
        model.pop("lm_head", None)
    num_parameters = sum(array.size for _, array in tree_flatten(model.parameters()))
    quantize(model, group_size=64, bits=4)
    weight_bytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    cache, fault = find_cache(config, [])
    if cache is None:
        raise ValueError(f"{name}: {fault}")
    needs = [
        weight_bytes + cache_bytes(cache, context) + WORKING_BYTES
        if context <= config["max_position_embeddings"]
        else None
        for context in CONTEXTS
    ]
    wanted = needs[1] or needs[0]
    assert wanted
    return {
        "name": name,
        "hub_name": f"mlx-community/{NAMES[name]}",
        "context": config["max_position_embeddings"],
        "parameters": num_parameters / 1e9,
        "weights": weight_bytes / GIB,
        "each": cache_bytes(cache, 11_000) - cache_bytes(cache, 10_000),
        "needs": [None if one is None else one / GIB for one in needs],
        "mac": next((mac for mac in MACS if wanted <= SHARE * mac * GIB), None),
    }


def main() -> None:
    """Write docs/models.md."""
    rows = sorted((describe(*each) for each in MODELS.items()), key=lambda row: row["weights"])
    PAGE.write_text(
        Template(TEMPLATE.read_text(), trim_blocks=True, keep_trailing_newline=True).render(rows=rows)
    )


if __name__ == "__main__":
    main()
