"""Random models of every architecture in mlx-lm, which run mlx-lm's own code: tiny, or larger and written."""

import importlib
import inspect
import json
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten

from config.settings import BUNDLED_MODEL

TINY: dict[str, Any] = {
    # Sizes, under all the names that architectures have for them.
    **dict.fromkeys(("vocab_size", "num_vocab", "embedding_size", "vocab_size_per_layer_input"), 512),
    **dict.fromkeys(("hidden_size", "hidden_dim", "d_model", "model_dim", "n_embd", "block_dim"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_transformer_layers"), 2
    ),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads", "swa_num_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_attention_groups"), 1),
    **dict.fromkeys(("num_global_key_value_heads", "swa_num_key_value_heads"), 1),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "kv_channels"), 32),
    **dict.fromkeys(("swa_head_dim", "swa_v_head_dim", "global_head_dim", "hidden_size_per_head"), 32),
    **dict.fromkeys(("intermediate_size", "block_ff_dim", "ffn_hidden_size", "n_inner"), 64),
    **dict.fromkeys(("ff_intermediate_size", "mlp_hidden_size", "intermediate_size_mlp"), 64),
    **dict.fromkeys(("dense_intermediate_size", "shared_intermediate_size"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "block_size"), 1024),
    **dict.fromkeys(("model_max_length", "original_max_position_embeddings"), 1024),
    **dict.fromkeys(("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon"), 1e-5),
    "layernorm_epsilon": 1e-5,
    **dict.fromkeys(("rope_theta", "swa_rope_theta", "rope_local_base_freq", "rotary_emb_base"), 10_000.0),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), 0.5),
    "rotary_dim": 16,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "dim_model_base", "o_lora_rank"), 32),
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    # Sliding windows.
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "window_size"), 16),
    "sliding_window_pattern": 2,
    "attention_chunk_size": 16,
    # Mixtures of experts.
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k"), 2),
    "top_k_experts": 2,
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "num_shared_expert", "n_group"), 1),
    **dict.fromkeys(("topk_group", "num_expert_group", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "moe_hidden_size"), 32),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    "share_expert_dim": 32,
    "zero_expert_num": 1,
    "zero_expert_type": "identity",
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.0,
    "num_dense_layers": 1,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 1,
    "moe_layer_freq": 1,
    "interleave_moe_layer_step": 1,
    "mlp_only_layers": (),
    # Recurrent layers and short convolutions.
    **dict.fromkeys(("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads"), 4),
    "linear_num_key_heads": 2,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 32),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head"), 16),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 8),
    **dict.fromkeys(("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "conv1d_width"), 4),
    **dict.fromkeys(("n_groups", "mamba_n_groups"), 1),
    "mamba_d_ssm": 64,
    "mamba_expand": 2,
    "time_step_rank": 4,
    "time_step_limit": (0.001, 100.0),
    "linear_allow_neg_eigval": False,
    "conv_L_cache": 3,
    "conv_window": 2,
    "full_attention_interval": 2,
    **dict.fromkeys(("layer_group_size", "group_norm_size"), 2),
    **dict.fromkeys(
        ("a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim", "decay_low_rank_dim"), 16
    ),
    # Attention by an index of tokens.
    **dict.fromkeys(("index_n_heads",), 2),
    "index_head_dim": 32,
    "index_topk": 16,
    # Switches and factors.
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "conv_bias"), False),
    **dict.fromkeys(("use_conv_bias", "mamba_conv_bias", "use_qk_norm", "qk_norm", "use_expert_bias"), True),
    **dict.fromkeys(("mamba_proj_bias", "post_norm", "use_cla", "use_mixed_mlp_moe"), False),
    **dict.fromkeys(("logits_scaling", "attention_multiplier", "embedding_multiplier"), 1.0),
    **dict.fromkeys(("residual_multiplier", "scale_depth", "scale_emb"), 1.0),
    **dict.fromkeys(("mla_scale_q_lora", "mla_scale_kv_lora"), True),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap"), 30.0),
    "query_pre_attn_scalar": 32,
    "cla_share_factor": 1,
}  # fmt: skip
"""A value for every field of a configuration, by its name. Architectures take those that they know."""

MIXED = ["sliding_attention", "full_attention"]
BY_LAYER_TYPE = {kind: {"rope_theta": 10_000.0, "rope_type": "default"} for kind in MIXED}
KDA = {
    "kda_layers": [1], "full_attn_layers": [2], "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4,
}  # fmt: skip

YARN = {
    "type": "yarn", "rope_type": "yarn", "factor": 2.0, "rope_theta": 10_000.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 512, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
PACKED = {"path": "lm_head", "embedding": False, "dtype": "float16", "shape": [512, 128], "block": 0}

CHANGES: dict[str, dict[str, Any]] = {
    "afm7": {"num_layers": 3, "num_kv_reuse_layers": 1},
    "afmoe": {"layer_types": MIXED},
    "baichuan_m1": {"sliding_window_layers": [0]},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8, "rope_theta": 10_000.0},
    },
    "deepseek_v2": {"rope_scaling": YARN},
    "deepseek_v41": {"o_groups": 1},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"layer_types": MIXED, "is_moe_layer": [False, True]},
    "gear": {"layer_types": ["conv_mixer", *MIXED], "num_hidden_layers": 3},
    "gemma3n": {
        "num_hidden_layers": 4, "layer_types": MIXED * 2, "num_kv_shared_layers": 2, "laurel_rank": 16,
        "activation_sparsity_pattern": [0.5] * 4, "hidden_size_per_layer_input": 16, "altup_num_inputs": 2,
        "altup_coef_clip": 10.0, "altup_correct_scale": True, "altup_active_idx": 0,
    },
    "gemma4": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16,
        "layer_types": MIXED * 2,
    },
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan": {"rope_scaling": {"alpha": 2.0, "factor": 2.0, "type": "dynamic"}},
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2,
    },
    "kimi_k3": {"linear_attn_config": KDA, "attn_res_block_size": 1},
    "kimi_linear": {"linear_attn_config": KDA},
    "laguna": {"layer_types": MIXED},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "llama4": {"num_hidden_layers": 4, "num_experts_per_tok": 1},
    "llama4_text": {"no_rope_layers": [1, 0]},
    "longcat_flash": {"attention_method": "MLA"},
    "mellum": {"layer_types": MIXED, "rope_parameters": BY_LAYER_TYPE},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0], "moe_layer_freq": [0, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "minicpm3": {"rope_scaling": {"short_factor": [1.0] * 16, "long_factor": [1.0] * 16}},
    "minimax_m3_vl": {"moe_layer_freq": [0, 1]},
    "ministral3": {"rope_parameters": YARN, "layer_types": MIXED},
    "mistral4": {"rope_parameters": YARN},
    "muse_glimmer": {"layer_types": MIXED},
    "muse_spark": {
        "rope_parameters": {"rope_theta": 10_000.0}, "layer_types": MIXED, "post_norm_eps": 1e-5,
        "layer_rope_theta": [10_000.0, 0], "output_multiplier": 1.0, "num_shared_experts": 0,
    },
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}}] * 2,
    },
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "E", "-"]},
    "olmo3": {"layer_types": MIXED},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "openelm": {
        "ffn_dim_divisor": 8, "ffn_multipliers": [1.0, 1.0], "num_query_heads": [2, 2],
        "num_kv_heads": [1, 1],
    },
    "phi3small": {"dense_attention_every_n_layers": 2, "gegelu_limit": 20.0},
    "phimoe": {
        "rope_scaling": {
            "short_factor": [1.0] * 16, "long_factor": [1.0] * 16, "short_mscale": 1.0, "long_mscale": 1.0,
        },
    },
    "plamo": {"n_shared_head": 2},
    "plamo2": {"full_attention_idx": [1]},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5", "modules": [PACKED], "hidden_size": 128,
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
    },
    "qwen3_5": {"num_experts": 0},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "spark2_5": {"rope_parameters": BY_LAYER_TYPE, "layer_types": MIXED},
}  # fmt: skip
"""What an architecture needs beyond TINY, or instead of it."""

SAME_AS = {
    "gemma4_text": "gemma4", "lfm2-vl": "lfm2", "lfm2_moe": "lfm2", "mistral3": "ministral3",
}  # fmt: skip
"""Architectures that need the changes of another one."""

TEXT_TYPES = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "mistral3": "ministral3"}
"""Multimodal architectures whose text part is named in its configuration."""


def architectures() -> list[str]:
    """Return the names of all architectures in the installed mlx-lm: its modules with a Model and ModelArgs.

    A module that cannot be imported counts as one; trying it tells why.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))
    return [name for name in names if _is_architecture(name)]


def _is_architecture(name: str) -> bool:
    try:
        module = _module(name)
    # A module whose requirements are not installed may end the process.
    except (Exception, SystemExit):  # noqa: BLE001
        return True
    return hasattr(module, "Model") and hasattr(module, "ModelArgs")


def _module(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.models.{name}")


def tiny_config(name: str, **changes: Any) -> dict[str, Any]:
    """Return a tiny configuration of an architecture. changes: entries to replace."""
    known = inspect.signature(_module(name).ModelArgs).parameters
    every = TINY | CHANGES.get(SAME_AS.get(name, name), {}) | changes | {"model_type": name}
    config = {key: value for key, value in every.items() if key in known}
    # The fields of a text part are not known here; it ignores those that it does not have.
    text = {"text_config": every | {"model_type": TEXT_TYPES.get(name, name)}}
    return config | text if "text_config" in known else config


def make_model(config: dict[str, Any], dtype: mx.Dtype = mx.float32) -> Any:
    """Make a random model. Its weights are large enough for the logits of its choices to be far apart."""
    module = _module(config["model_type"])
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(config))
    flat: Any = tree_flatten(model.parameters())
    weights = [
        (key, (mx.random.normal(a.shape) * 0.3 if a.ndim > 1 else a).astype(dtype))
        for key, a in flat
        if mx.issubdtype(a.dtype, mx.floating)
    ]
    model.load_weights(weights, strict=False)
    model.eval()
    mx.eval(model.parameters())
    return model


SIZES = {
    "vocab_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    **dict.fromkeys(("hidden_size", "block_dim"), 256),
    **dict.fromkeys(("intermediate_size", "block_ff_dim"), 1024),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 256),
    "max_position_embeddings": 4096,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
LARGER: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"] * 2},
    # Of each expert.
    "gpt_oss": {"intermediate_size": 256},
}


def write_random_model(name: str, folder: Path) -> Path:
    """Write a random model with the bundled tokenizer into a new folder, and return it.

    name: of an architecture in mlx-lm. Raises ImportError if there is none.
    """
    config = tiny_config(name, **(SIZES | LARGER.get(name, {})))
    model = make_model(config)
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED_MODEL / file, folder)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
