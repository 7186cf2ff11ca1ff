"""The sizes of demo models, and the one that this process trains."""

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 192,
    "num_hidden_layers": 6,
    "intermediate_size": 384,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "vocab_size": 4096,
    # Agents begin with prompts of tens of thousands of tokens. Training samples have up to 3,000.
    "max_position_embeddings": 65536,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
# The model in demo_model/draft is smaller in these.
DRAFT_CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
# The model in demo_model/draft_polish has another vocabulary. Half of its training text has diacritics.
POLISH_CONFIG = DRAFT_CONFIG | {"vocab_size": 3072}
# Sizes that train no model but what drafts from its states.
HEADS = ("states", "mtp", "dflash")


def choose_size(arguments: argparse.Namespace) -> None:
    """Set CONFIG to the chosen size. Every process has its own CONFIG."""
    CONFIG.update({"demo": {}, "draft": DRAFT_CONFIG, "polish": POLISH_CONFIG}[arguments.size])
