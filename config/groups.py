"""Group the settings, for `reprise serve --help` and docs/settings.md."""

from collections.abc import Mapping
from types import MappingProxyType

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Model": (
            "model",
            "served_model_name",
            "chat_template",
            "sampling_defaults",
            "max_context_tokens",
            "kv_bits",
            "mask_token_id",
            "trust_remote_code",
            "adapter_path",
        ),
        "Several models": (
            "models_dir",
            "embedding_model",
            "rerank_model",
            "allow_load",
            "load_timeout_s",
            "idle_unload_s",
        ),
        "Several machines": ("hosts", "split", "split_layers", "join_timeout_s"),
        "Address and access": (
            "host",
            "port",
            "api_key",
            "api_key_file",
            "insecure",
            "allowed_host",
            "cors_origin",
        ),
        "Scheduling": (
            "max_rows",
            "max_queue",
            "prefill_chunk_tokens",
            "max_stall_ms",
            "keep_alive_s",
            "drain_s",
            "stall_seconds",
        ),
        "Request limits": (
            "default_max_tokens",
            "loop_guard_tokens",
            "max_n",
            "max_images",
            "max_image_tokens",
            "unknown_fields",
            "keep_billing_line",
            "max_body_bytes",
            "body_timeout_s",
        ),
        "Memory and caches": (
            "memory_bytes",
            "wire_weights",
            "prefix_cache_bytes",
            "prefix_cache_dir",
            "prefix_cache_dir_bytes",
            "response_store_bytes",
        ),
        "Drafting": (
            "draft_type",
            "num_draft_tokens",
            "draft_overhead",
            "gate",
            "gate_threshold",
            "exact",
            "costs_file",
        ),
        "Draft model": (
            "draft_model",
            "dflash_window",
            "dflash_sink",
            "draft_translation",
            "translation_prefix_tokens",
        ),
        "N-gram drafts": (
            "ngram_mod_size",
            "ngram_table_entries",
            "ngram_table_file",
            "ngram_scope",
        ),
        "Windowed decoding": (
            "wedlm_decoding",
            "wedlm_window_size",
            "wedlm_entropy_threshold",
            "wedlm_pos_penalty_factor",
            "wedlm_anchor",
        ),
        "Logs and recording": ("log_format", "log_level", "verbose", "log_prompts", "record", "record_bytes"),
    }
)
"""Names of the settings by the title of their group: every setting once, in the order of declaration."""

TUNING = frozenset(
    (
        "load_timeout_s", "idle_unload_s", "split_layers", "join_timeout_s",
        "prefill_chunk_tokens", "stall_seconds", "loop_guard_tokens", "max_n", "body_timeout_s",
        "draft_overhead", "gate", "gate_threshold", "dflash_window", "dflash_sink",
        "translation_prefix_tokens",
        "ngram_mod_size", "ngram_table_entries", "wedlm_pos_penalty_factor", "wedlm_anchor",
    )
)  # fmt: skip
"""Settings that only matter to someone tuning: --help-all shows them, --help does not."""
