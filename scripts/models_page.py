"""Calculate what well-known models and their drafters take of a Mac's memory and write docs/models.md.

    .venv/bin/python scripts/models_page.py

Sizes come from mlx-lm's own classes, built from the shapes below and never computed; the cache of a row is
counted as `reprise info` counts it. Drafters are counted by the shapes that their publishers write.
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


def qwen3_5(sizes: Sizes, value_heads: int, *, model_type: str = "qwen3_5", **more: Any) -> dict[str, Any]:
    """Return a configuration of Qwen3.5, 3.6 and 3.8's text model: each fourth layer has full attention."""
    return dense(
        model_type, sizes, 248_320, 262_144,
        full_attention_interval=4, linear_num_value_heads=value_heads, linear_num_key_heads=16,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, **more,
    )  # fmt: skip


def gemma4(sizes: Sizes, global_kv: int | None, window: int, context: int, **more: Any) -> dict[str, Any]:
    """Return a configuration of Gemma 4's text model. global_kv: kv of full attention, where it differs."""
    defaults = {"num_global_key_value_heads": global_kv, "attention_k_eq_v": global_kv is not None,
                "global_head_dim": 512, "sliding_window": window, "sliding_window_pattern": 6,
                "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False,
                "tie_word_embeddings": True}  # fmt: skip
    return dense("gemma4_text", sizes, 262_144, context, **defaults | more)


QWEN_27B = Sizes(64, 5120, 17_408, 24, 4, 256)
QWEN_35B = qwen3_5(
    Sizes(40, 2048, 512, 16, 2, 256), 32, model_type="qwen3_5_moe",
    num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512, shared_expert_intermediate_size=512,
)  # fmt: skip

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
    "Qwen3.5 4B": qwen3_5(Sizes(32, 2560, 9216, 16, 4, 256), 32, tie_word_embeddings=True),
    "Qwen3.5 9B": qwen3_5(Sizes(32, 4096, 12_288, 16, 4, 256), 32),
    "Qwen3.5 27B": qwen3_5(QWEN_27B, 48),
    "Qwen3.5 35B-A3B": QWEN_35B,
    "Qwen3.6 27B": qwen3_5(QWEN_27B, 48),
    "Qwen3.6 35B-A3B": QWEN_35B,
    "Qwen3.8 27B": qwen3_5(QWEN_27B, 48),
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
    "Gemma 4 E2B": gemma4(
        Sizes(35, 1536, 6144, 8, 1, 256), None, 512, 131_072, sliding_window_pattern=5,
        num_kv_shared_layers=20, hidden_size_per_layer_input=256, use_double_wide_mlp=True,
    ),
    "Gemma 4 E4B": gemma4(
        Sizes(42, 2560, 10_240, 8, 2, 256), None, 512, 131_072,
        num_kv_shared_layers=18, hidden_size_per_layer_input=256,
    ),
    "Gemma 4 12B": gemma4(Sizes(48, 3840, 15_360, 16, 8, 256), 1, 1024, 262_144),
    "Gemma 4 26B-A4B": gemma4(
        Sizes(30, 2816, 2112, 16, 8, 256), 2, 1024, 262_144,
        enable_moe_block=True, num_experts=128, top_k_experts=8, moe_intermediate_size=704,
    ),
    "Gemma 4 31B": gemma4(Sizes(60, 5376, 21_504, 32, 16, 256), 4, 1024, 262_144),
    "Muse Glimmer 30B": dense(
        "muse_glimmer", Sizes(52, 6656, 19_968, 32, 2, 128), 202_048, 131_072,
        sliding_window=2048, layer_types=[*["sliding_attention"] * 3, "full_attention"] * 13,
    ),
    "Laguna XS 2.1": dense(
        "laguna", Sizes(40, 2048, 8192, 48, 8, 128), 100_352, 262_144,
        gating="per-head", num_attention_heads_per_layer=[48, 64, 64, 64] * 10,
        sliding_window=512, layer_types=["full_attention", *["sliding_attention"] * 3] * 10,
        num_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=512, shared_expert_intermediate_size=512,
    ),
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
"""The shapes in the models' published configurations.

Of Qwen3.5 and later, Gemma 4 and Laguna XS as tests of public repositories quote them; of Muse Glimmer and
Gemma 4 E2B as mlx-lm's classes have them.
"""

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
    "Qwen3.5 4B": "Qwen3.5-4B-MLX-4bit",
    "Qwen3.5 9B": "Qwen3.5-9B-MLX-4bit",
    "Qwen3.5 27B": "Qwen3.5-27B-4bit",
    "Qwen3.5 35B-A3B": "Qwen3.5-35B-A3B-4bit",
    "Qwen3.6 27B": "Qwen3.6-27B-4bit",
    "Qwen3.6 35B-A3B": "Qwen3.6-35B-A3B-4bit",
    "Qwen3.8 27B": "Qwen3.8-27B-4bit",
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
    "Gemma 4 E2B": "gemma-4-e2b-it-4bit",
    "Gemma 4 E4B": "gemma-4-e4b-it-4bit",
    "Gemma 4 12B": "gemma-4-12b-it-4bit",
    "Gemma 4 26B-A4B": "gemma-4-26b-a4b-it-4bit",
    "Gemma 4 31B": "gemma-4-31b-it-4bit",
    "Muse Glimmer 30B": "Muse-Glimmer-30B-4bit",
    "Laguna XS 2.1": "poolside/Laguna-XS-2.1-NVFP4-mlx",
    "Devstral 24B": "Devstral-Small-2507-4bit",
    "gpt-oss 20B": "gpt-oss-20b-MXFP4-Q4",
    "gpt-oss 120B": "gpt-oss-120b-MXFP4-Q4",
}
"""Names on the hub, of the organization mlx-community where none is named."""


def layers_of(sizes: Sizes, inputs: int | None = None) -> int:
    """Return the parameters of layers with attention and an MLP; inputs: width of what they attend to."""
    inputs = inputs or sizes.hidden
    attention = (sizes.heads + 2 * sizes.kv) * sizes.dim * inputs + sizes.heads * sizes.dim * sizes.hidden
    return sizes.layers * (attention + 3 * sizes.hidden * sizes.inner + 2 * sizes.hidden)


def eagle3(sizes: Sizes, draft_vocab: int, *, taps: int = 3, embedded: int = 0) -> int:
    """Return the parameters of an EAGLE-3 head; embedded: rows of an embedding of its own."""
    joined = taps * sizes.hidden**2
    return joined + layers_of(sizes, 2 * sizes.hidden) + (draft_vocab + embedded + 2) * sizes.hidden


def dflash(sizes: Sizes, taps: int) -> int:
    """Return the parameters of a DFlash drafter, which takes the model's embedding and head."""
    return taps * sizes.hidden**2 + layers_of(sizes) + 2 * sizes.layers * sizes.dim + 2 * sizes.hidden


def dflash2(sizes: Sizes, taps: int, vocab: int) -> int:
    """Return the parameters of a DFlash 2 drafter: a selector of rank 256, convolutions in groups of 16."""
    convolutions = 2 * sizes.layers * sizes.hidden * (2 * 2 * sizes.hidden // 16 + 4)
    return dflash(sizes, taps) + convolutions + 256 * (2 * vocab + sizes.hidden)


def dspark(sizes: Sizes, taps: int, vocab: int) -> int:
    """Return the parameters of a DSpark drafter of rank 256 with an embedding and a head of its own."""
    return dflash(sizes, taps) + 2 * vocab * (256 + sizes.hidden)


def assistant(backbone: int, sizes: Sizes, centroids: int = 0) -> int:
    """Return the parameters of a Gemma 4 assistant: no keys, and heads twice as wide in its last layer."""
    attention = 2 * sizes.heads * sizes.dim * sizes.hidden * (sizes.layers + 1)
    mlp = 3 * sizes.layers * sizes.hidden * sizes.inner
    return (262_144 + centroids + 3 * backbone) * sizes.hidden + attention + mlp


def mtp(sizes: Sizes, experts: int = 1) -> int:
    """Return the parameters of Qwen's MTP head: a layer with gated attention. experts: all and the shared."""
    attention = (3 * sizes.heads + 2 * sizes.kv) * sizes.dim * sizes.hidden
    router = experts * sizes.hidden if experts > 1 else 0
    return 2 * sizes.hidden**2 + attention + 3 * experts * sizes.hidden * sizes.inner + router


class Drafter(NamedTuple):
    """A published drafter."""

    model: str
    repository: str
    kind: str
    parameters: int | None
    """None: its configuration was not found."""

    source: str
    """Where its shape was read, or where it is named."""

    licence: str = "not stated"


SERVED: Mapping[str, str] = {
    "EAGLE-3": "eagle3",
    "DFlash": "dflash",
    "DFlash 2": "dflash",
    "DSpark": "dflash",
    "Laguna DFlash": "dflash",
    "Muse DFlash": "dflash",
    "Gemma 4 assistant": "mtp",
    "MTP head": "mtp",
}
"""The draft type that a kind is served as."""

UNREAD = ("-speculator.dflash", "-speculator.dspark", "deepseek-ai/eagle3_gemma4")
"""Parts of the names of drafters that Reprise does not read: of a layout of their own."""

ANGELSLIM = "Tencent/AngelSlim angelslim/compressor/speculative/train/configs"
DEEPSPEC = "deepseek-ai/DeepSpec README.md, config and deepspec/modeling"
NAMED = "documentation of programs that serve it"
EAGLE = "SafeAILab/EAGLE README.md"
QUOTED = "its config.json, as tests of public repositories quote it"
SPECFORGE = "sgl-project/SpecForge configs"
SPECULATORS = "vllm-project/speculators README.md"
SURVEY = "shapes in a public survey of drafters, May 2026"
SPLIT = "the model's config.json"
QWEN3_VOCAB = 151_936
QWEN3_4B = Sizes(5, 2560, 9728, 32, 8, 128)
QWEN3_8B = Sizes(5, 4096, 12_288, 32, 8, 128)
QWEN3_14B = Sizes(5, 5120, 17_408, 40, 8, 128)
QWEN_27B_DRAFTER = Sizes(5, 5120, 17_408, 32, 8, 128)
QWEN_35B_DRAFTER = Sizes(8, 2048, 6144, 32, 4, 128)
QWEN_27B_HEAD = mtp(QWEN_27B)
QWEN_35B_HEAD = mtp(Sizes(1, 2048, 512, 16, 2, 256), 257)
GEMMA4_12B = Sizes(5, 3840, 15_360, 16, 1, 512)
GPT_OSS_DRAFTER = Sizes(8, 2880, 7680, 64, 8, 64)


def one_layer(sizes: Sizes) -> Sizes:
    """Return sizes with one layer."""
    return sizes._replace(layers=1)


def without_values(sizes: Sizes) -> int:
    """Return how many parameters fewer Gemma 4's full attention has, whose values are its keys."""
    return -sizes.layers * sizes.kv * sizes.dim * sizes.hidden


DRAFTERS: tuple[Drafter, ...] = (
    Drafter("Qwen3 1.7B", "AngelSlim/Qwen3-1.7B_eagle3", "EAGLE-3",
            eagle3(Sizes(1, 2048, 6144, 16, 8, 128), 32_000), f"{ANGELSLIM}/qwen3-1.7b-eagle3.json"),
    Drafter("Qwen3 4B", "AngelSlim/Qwen3-4B_eagle3", "EAGLE-3",
            eagle3(one_layer(QWEN3_4B), 32_000), f"{ANGELSLIM}/qwen3-4b-eagle3.json"),
    Drafter("Qwen3 4B", "deepseek-ai/eagle3_qwen3_4b_ttt7", "EAGLE-3",
            eagle3(one_layer(QWEN3_4B), QWEN3_VOCAB, taps=5, embedded=QWEN3_VOCAB), DEEPSPEC),
    Drafter("Qwen3 4B", "z-lab/Qwen3-4B-DFlash-b16", "DFlash", dflash(QWEN3_4B, 5), QUOTED),
    Drafter("Qwen3 4B", "deepseek-ai/dflash_qwen3_4b_block7", "DFlash",
            dflash(QWEN3_4B, 5) + 2 * QWEN3_VOCAB * 2560, DEEPSPEC),
    Drafter("Qwen3 4B", "deepseek-ai/dspark_qwen3_4b_block7", "DSpark",
            dspark(QWEN3_4B, 5, QWEN3_VOCAB), DEEPSPEC),
    Drafter("Qwen3 8B", "AngelSlim/Qwen3-8B_eagle3", "EAGLE-3",
            eagle3(one_layer(QWEN3_8B), 32_000), f"{ANGELSLIM}/qwen3-8b-eagle3.json"),
    Drafter("Qwen3 8B", "Tengyunw/qwen3_8b_eagle3", "EAGLE-3", None, EAGLE),
    Drafter("Qwen3 8B", "RedHatAI/Qwen3-8B-speculator.eagle3", "EAGLE-3", None, SPECULATORS),
    Drafter("Qwen3 8B", "deepseek-ai/eagle3_qwen3_8b_ttt7", "EAGLE-3",
            eagle3(one_layer(QWEN3_8B), QWEN3_VOCAB, taps=5, embedded=QWEN3_VOCAB), DEEPSPEC),
    Drafter("Qwen3 8B", "z-lab/Qwen3-8B-DFlash-b16", "DFlash", dflash(QWEN3_8B, 5),
            "vllm-project/speculators tests/unit/convert/test_dflash_converter.py"),
    Drafter("Qwen3 8B", "RedHatAI/Qwen3-8B-speculator.dflash", "DFlash", None, SPECULATORS),
    Drafter("Qwen3 8B", "deepseek-ai/dflash_qwen3_8b_block7", "DFlash",
            dflash(QWEN3_8B, 5) + 2 * QWEN3_VOCAB * 4096, DEEPSPEC),
    Drafter("Qwen3 8B", "deepseek-ai/dspark_qwen3_8b_block7", "DSpark",
            dspark(QWEN3_8B, 5, QWEN3_VOCAB), DEEPSPEC),
    Drafter("Qwen3 14B", "AngelSlim/Qwen3-14B_eagle3", "EAGLE-3",
            eagle3(one_layer(QWEN3_14B), 32_000), f"{ANGELSLIM}/qwen3-14b-eagle3.json"),
    Drafter("Qwen3 14B", "RedHatAI/Qwen3-14B-speculator.eagle3", "EAGLE-3", None, SPECULATORS),
    Drafter("Qwen3 14B", "deepseek-ai/eagle3_qwen3_14b_ttt7", "EAGLE-3",
            eagle3(one_layer(QWEN3_14B), QWEN3_VOCAB, taps=5, embedded=QWEN3_VOCAB), DEEPSPEC),
    Drafter("Qwen3 14B", "deepseek-ai/dflash_qwen3_14b_block7", "DFlash",
            dflash(QWEN3_14B, 5) + 2 * QWEN3_VOCAB * 5120, DEEPSPEC),
    Drafter("Qwen3 14B", "deepseek-ai/dspark_qwen3_14b_block7", "DSpark",
            dspark(QWEN3_14B, 5, QWEN3_VOCAB), DEEPSPEC),
    Drafter("Qwen3 32B", "AngelSlim/Qwen3-32B_eagle3", "EAGLE-3",
            eagle3(Sizes(1, 5120, 25_600, 64, 8, 128), 32_000), f"{ANGELSLIM}/qwen3-32b-eagle3.json"),
    Drafter("Qwen3 32B", "RedHatAI/Qwen3-32B-speculator.eagle3", "EAGLE-3", None, SPECULATORS),
    Drafter("Qwen3-Coder 30B-A3B", "lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge", "EAGLE-3",
            eagle3(Sizes(1, 2048, 12_288, 32, 4, 128), 32_000),
            f"{SPECFORGE}/qwen3-coder-30B-A3B-instruct-eagle3.json"),
    Drafter("Qwen3-Coder 30B-A3B", "z-lab/Qwen3-Coder-30B-A3B-DFlash", "DFlash",
            dflash(QWEN_35B_DRAFTER, 5), SURVEY, "MIT"),
    Drafter("Qwen3-Next 80B-A3B", "in the model", "MTP head", mtp(Sizes(1, 2048, 512, 16, 2, 256), 513),
            SPLIT, "the model's"),
    Drafter("Qwen3-Next 80B-A3B", "lmsys/SGLang-EAGLE3-Qwen3-Next-80B-A3B-Instruct-FP8-SpecForge", "EAGLE-3",
            eagle3(Sizes(1, 2048, 16_384, 16, 2, 256), 32_000),
            f"{SPECFORGE}/qwen3-next-80b-a3b-eagle3.json"),
    Drafter("Qwen3.5 4B", "mlx-community/Qwen3.5-4B-MTP-4bit", "MTP head",
            mtp(Sizes(1, 2560, 9216, 16, 4, 256)), SPLIT, "the model's"),
    Drafter("Qwen3.5 4B", "z-lab/Qwen3.5-4B-DFlash", "DFlash", dflash(QWEN3_4B, 5),
            f"{SPECFORGE}/qwen3.5-4b-dflash.json"),
    Drafter("Qwen3.5 9B", "mlx-community/Qwen3.5-9B-MTP-4bit", "MTP head",
            mtp(Sizes(1, 4096, 12_288, 16, 4, 256)), SPLIT, "the model's"),
    Drafter("Qwen3.5 9B", "z-lab/Qwen3.5-9B-DFlash", "DFlash", dflash(QWEN3_8B, 5), QUOTED),
    Drafter("Qwen3.5 27B", "in the model", "MTP head", QWEN_27B_HEAD, SPLIT, "the model's"),
    Drafter("Qwen3.5 27B", "z-lab/Qwen3.5-27B-DFlash", "DFlash", dflash(QWEN_27B_DRAFTER, 5), SURVEY, "MIT"),
    Drafter("Qwen3.5 35B-A3B", "in the model", "MTP head", QWEN_35B_HEAD, SPLIT, "the model's"),
    Drafter("Qwen3.5 35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash", "DFlash", dflash(QWEN_35B_DRAFTER, 5),
            f"{SPECFORGE}/qwen3.5-35b-a3b-dflash.json"),
    Drafter("Qwen3.6 27B", "mlx-community/Qwen3.6-27B-MTP-4bit", "MTP head", QWEN_27B_HEAD, SPLIT,
            "the model's"),
    Drafter("Qwen3.6 27B", "z-lab/Qwen3.6-27B-DFlash", "DFlash", dflash(QWEN_27B_DRAFTER, 5),
            f"{SPECFORGE}/qwen3.6-27b-dflash.json", "MIT"),
    Drafter("Qwen3.6 35B-A3B", "mlx-community/Qwen3.6-35B-A3B-MTP-bf16", "MTP head", QWEN_35B_HEAD, SPLIT,
            "the model's"),
    Drafter("Qwen3.6 35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash", "DFlash",
            dflash(Sizes(6, 2048, 6144, 32, 8, 128), 8), QUOTED, "MIT"),
    Drafter("Qwen3.6 35B-A3B", "RedHatAI/Qwen3.6-35B-A3B-speculator.dspark", "DSpark", None, SPECULATORS),
    Drafter("Qwen3.8 27B", "mlx-community/Qwen3.8-27B-MTP-bf16", "MTP head", QWEN_27B_HEAD, SPLIT,
            "the model's"),
    Drafter("Qwen3.8 27B", "z-lab/Qwen3.8-27B-DFlash2", "DFlash 2",
            dflash2(QWEN_27B_DRAFTER, 5, 248_320), QUOTED, "Apache-2.0"),
    # Its configuration and the size of its file, which is less, disagree.
    Drafter("Qwen3.8 27B", "RadixArk/Qwen3.8-27B-DSpark", "DSpark", None, QUOTED, "other"),
    Drafter("Qwen3.8 27B", "RedHatAI/Qwen3.8-27B-speculator.dspark", "DSpark", 1_988_431_617,
            "its number of parameters, as the hub states it", "Apache-2.0"),
    Drafter("Llama 3.1 8B", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "EAGLE-3",
            eagle3(Sizes(1, 4096, 14_336, 32, 8, 128), 32_000),
            "SafeAILab/EAGLE eagle/traineagle3/config.json"),
    Drafter("Llama 3.1 8B", "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge", "EAGLE-3",
            eagle3(Sizes(1, 4096, 14_336, 32, 8, 128), 32_000), f"{SPECFORGE}/llama3-8B-eagle3.json"),
    Drafter("Llama 3.1 8B", "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "EAGLE-3", None, SPECULATORS),
    Drafter("Llama 3.1 8B", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", "DFlash", None,
            "z-lab/dflash README.md"),
    Drafter("Llama 3.3 70B", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "EAGLE-3", None, EAGLE),
    Drafter("Llama 3.3 70B", "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", "EAGLE-3", None,
            SPECULATORS),
    Drafter("Llama 3.3 70B", "nvidia/Llama-3.3-70B-Instruct-Eagle3", "EAGLE-3", None,
            "NVIDIA/Model-Optimizer tests/examples/hf_ptq/test_deploy.py"),
    Drafter("Llama 3.3 70B", "lmsys/SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge", "EAGLE-3",
            eagle3(Sizes(1, 8192, 28_672, 64, 8, 128), 32_000), f"{SPECFORGE}/llama3-70B-ealge3.json"),
    Drafter("Gemma 4 E2B", "google/gemma-4-E2B-it-assistant", "Gemma 4 assistant",
            assistant(1536, Sizes(4, 256, 2048, 4, 1, 256), 2048), QUOTED, "Apache-2.0"),
    Drafter("Gemma 4 E4B", "google/gemma-4-E4B-it-assistant", "Gemma 4 assistant",
            assistant(2560, Sizes(4, 256, 2048, 4, 2, 256), 2048), QUOTED, "Apache-2.0"),
    Drafter("Gemma 4 12B", "google/gemma-4-12B-it-assistant", "Gemma 4 assistant",
            assistant(3840, Sizes(4, 1024, 8192, 16, 8, 256)), QUOTED, "Apache-2.0"),
    Drafter("Gemma 4 12B", "deepseek-ai/eagle3_gemma4_12b_ttt7", "EAGLE-3",
            eagle3(one_layer(GEMMA4_12B), 262_144, taps=5, embedded=262_144)
            + 2 * without_values(one_layer(GEMMA4_12B)), DEEPSPEC),
    Drafter("Gemma 4 12B", "deepseek-ai/dflash_gemma4_12b_block7", "DFlash",
            dflash(GEMMA4_12B, 5) + 2 * 262_144 * 3840 + without_values(GEMMA4_12B), DEEPSPEC),
    Drafter("Gemma 4 12B", "deepseek-ai/dspark_gemma4_12b_block7", "DSpark",
            dspark(GEMMA4_12B, 5, 262_144) + without_values(GEMMA4_12B), DEEPSPEC),
    Drafter("Gemma 4 26B-A4B", "google/gemma-4-26B-A4B-it-assistant", "Gemma 4 assistant",
            assistant(2816, Sizes(4, 1024, 8192, 16, 8, 256)), QUOTED, "Apache-2.0"),
    Drafter("Gemma 4 26B-A4B", "RedHatAI/gemma-4-26B-A4B-it-speculator.eagle3", "EAGLE-3", None, SPECULATORS),
    Drafter("Gemma 4 26B-A4B", "z-lab/gemma-4-26B-A4B-it-DFlash", "DFlash", None, NAMED,
            "Apache-2.0"),
    Drafter("Gemma 4 31B", "google/gemma-4-31B-it-assistant", "Gemma 4 assistant",
            assistant(5376, Sizes(4, 1024, 8192, 32, 16, 256)), QUOTED, "Apache-2.0"),
    Drafter("Gemma 4 31B", "RedHatAI/gemma-4-31B-it-speculator.eagle3", "EAGLE-3",
            eagle3(Sizes(1, 5376, 21_504, 32, 16, 256), 32_000, embedded=262_144), QUOTED),
    Drafter("Gemma 4 31B", "RedHatAI/gemma-4-31B-it-speculator.dflash", "DFlash", None, SPECULATORS),
    Drafter("Gemma 4 31B", "RedHatAI/gemma-4-31B-it-speculator.dspark", "DSpark", None, NAMED),
    Drafter("Gemma 4 31B", "z-lab/gemma-4-31B-it-DFlash", "DFlash", None, NAMED),
    Drafter("Muse Glimmer 30B", "meta-models/Muse-Glimmer-30B-assistant", "Muse DFlash",
            dflash(Sizes(5, 6656, 19_968, 32, 8, 128), 5), "ddalcu/mlx-serve src/dflash.zig"),
    Drafter("Muse Glimmer 30B", "z-lab/Muse-Glimmer-30B-DFlash2", "DFlash 2",
            dflash2(Sizes(5, 6656, 19_968, 32, 8, 128), 5, 202_048), QUOTED),
    # One gate for each head, and a norm for each layer of the model that it reads.
    Drafter("Laguna XS 2.1", "poolside/Laguna-XS-2.1-DFlash", "Laguna DFlash",
            dflash(Sizes(5, 2048, 8192, 64, 8, 128), 5) + 5 * (64 + 1) * 2048, QUOTED),
    Drafter("gpt-oss 20B", "RedHatAI/gpt-oss-20b-speculator.eagle3", "EAGLE-3",
            eagle3(Sizes(1, 2880, 2880, 64, 8, 64), 64_000, embedded=201_088), QUOTED),
    Drafter("gpt-oss 20B", "zhuyksir/EAGLE3-gpt-oss-20b-bf16", "EAGLE-3",
            eagle3(Sizes(1, 2880, 17_280, 64, 8, 64), 32_000), f"{SPECFORGE}/gpt-oss-20B-eagle3.json"),
    Drafter("gpt-oss 20B", "nebius/EAGLE3-gpt-oss-20b", "EAGLE-3",
            eagle3(Sizes(1, 2880, 11_520, 64, 8, 64), 64_000), QUOTED),
    Drafter("gpt-oss 20B", "z-lab/gpt-oss-20b-DFlash", "DFlash", dflash(GPT_OSS_DRAFTER, 5), QUOTED),
    Drafter("gpt-oss 120B", "lmsys/EAGLE3-gpt-oss-120b-bf16", "EAGLE-3",
            eagle3(Sizes(1, 2880, 17_280, 64, 8, 64), 32_000), f"{SPECFORGE}/gpt-oss-120B-eagle3.json"),
    Drafter("gpt-oss 120B", "nvidia/gpt-oss-120b-Eagle3-long-context", "EAGLE-3", None,
            "NVIDIA/Model-Optimizer examples/specdec_bench/README.md"),
    Drafter("gpt-oss 120B", "RedHatAI/gpt-oss-120b-speculator.eagle3", "EAGLE-3", None, SPECULATORS),
    Drafter("gpt-oss 120B", "z-lab/gpt-oss-120b-DFlash", "DFlash", dflash(GPT_OSS_DRAFTER, 5), SURVEY),
)  # fmt: skip


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
        "hub_name": NAMES[name] if "/" in NAMES[name] else f"mlx-community/{NAMES[name]}",
        "context": config["max_position_embeddings"],
        "parameters": num_parameters / 1e9,
        "weights": weight_bytes / GIB,
        "each": cache_bytes(cache, 11_000) - cache_bytes(cache, 10_000),
        "needs": [None if one is None else one / GIB for one in needs],
        "mac": next((mac for mac in MACS if wanted <= SHARE * mac * GIB), None),
    }


def describe_drafter(drafter: Drafter) -> str:
    """Return a drafter's row of the page's second table."""
    name = f"`{drafter.repository}`" if "/" in drafter.repository else drafter.repository
    size = f"{2 * drafter.parameters / GIB:.2f} GiB" if drafter.parameters else "-"
    served = "no" if any(part in drafter.repository for part in UNREAD) else f"`{SERVED[drafter.kind]}`"
    cells = (drafter.model, name, drafter.kind, size, drafter.licence, served)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write docs/models.md."""
    rows = sorted((describe(*each) for each in MODELS.items()), key=lambda row: row["weights"])
    template = Template(TEMPLATE.read_text(), trim_blocks=True, keep_trailing_newline=True)
    PAGE.write_text(template.render(rows=rows, drafters=[describe_drafter(each) for each in DRAFTERS]))


if __name__ == "__main__":
    main()
