"""Configurations of drafters of blocks as they are published, with small sizes."""

from typing import Any

HIDDEN, VOCABULARY, NUM_LAYERS = 64, 512, 8
WINDOW = 7

_SIZES = {
    "model_type": "qwen3", "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rope_theta": 10_000.0, "hidden_act": "silu",
    "attention_bias": False, "tie_word_embeddings": True, "num_target_layers": NUM_LAYERS, "block_size": 8,
    "layer_types": ["full_attention"] * 3, "sliding_window": None,
}  # fmt: skip
_DRAFTING = {"mask_token_id": 509, "target_layer_ids": [1, 3, 6]}
_SLIDING = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window": WINDOW,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "DFlash": _SIZES | {"architectures": ["DFlashDraftModel"], "dflash_config": _DRAFTING},
    "DFlash, sliding": _SIZES
    | _SLIDING
    | {
        "architectures": ["DFlashDraftModel"],
        # mlx-vlm's sliding layers are not causal if nothing is said, those that are trained are.
        "dflash_config": _DRAFTING | {"attention_sink_bias": True, "causal": False},
    },
    "DFlash 2": _SIZES
    | {
        "architectures": ["DFlash2DraftModel"],
        "dflash_config": _DRAFTING
        | {
            "block_size": 8, "conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 16,
            "selector_top_k": 20, "input_embedding_scale": 0.5, "output_multiplier": 0.25,
            "final_logit_softcapping": 20.0,
        },
    },
    "DSpark": _SIZES
    | {
        "architectures": ["Qwen3DSparkModel"],
        "rope_is_neox_style": False,
        "dflash_config": _DRAFTING
        | {"projector_type": "dspark", "markov_rank": 16, "enable_confidence_head": True},
    },
    "DSpark, causal, behind the known token": _SIZES
    | _SLIDING
    | {
        "architectures": ["Qwen3DSparkModel"], "dspark_bonus_anchor": True,
        "dflash_config": _DRAFTING | {"markov_rank": 16, "causal": True, "sample_from_anchor": False},
    },
    "Gemma 4 DSpark": _SIZES
    | _DRAFTING
    | {
        "architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text", "global_head_dim": 32,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 30.0, "tie_word_embeddings": False, "markov_rank": 16,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "Laguna": _SIZES
    | {
        "architectures": ["LagunaDFlashModel"], "model_type": "laguna", "draft_vocab_size": VOCABULARY,
        "layer_types": ["sliding_attention"] * 3, "sliding_window": WINDOW, "gating": "per-head",
        "eagle_aux_hidden_state_layer_ids": [2, 4, 7],
        "dflash_config": _DRAFTING | {"block_size": 8, "num_target_layers": NUM_LAYERS, "causal": True},
    },
    "Muse Glimmer": _SIZES
    | _DRAFTING
    | {
        "architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant",
        "layer_types": ["sliding_attention"] * 3, "sliding_window": WINDOW,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
    },
}  # fmt: skip
