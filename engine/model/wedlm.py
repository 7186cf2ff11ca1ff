"""Let mlx-lm load WeDLM, a diffusion model with causal attention that it does not support itself.

A WeDLM checkpoint has the weights of a Qwen 2, Qwen 3 or Llama model. At a mask token it predicts the token
that belongs there; at any other token it predicts the next one, as usual. So it is served as that model. Code
that comes with a checkpoint is not run.

Source: WeDLM (arXiv:2512.22737) and its published code, for the names in config.json and the fallback.
"""

import sys
from importlib import import_module
from typing import Any

import mlx.core as mx
from transformers import AutoConfig, PretrainedConfig

MODEL_TYPE = "wedlm"

FAMILIES = {(True, False): "qwen2", (False, True): "qwen3", (False, False): "llama"}
"""(attention_bias, qk_norm) of a configuration -> the model of mlx-lm that has such layers."""

FALLBACK_MASK_TOKEN = 151665
"""The mask token of checkpoints whose configuration has none."""


class ModelArgs:
    """Stands in for a model's class of arguments in mlx-lm: makes the arguments of its family."""

    @staticmethod
    def from_dict(config: dict[str, Any]) -> Any:
        """Make the arguments of mlx-lm's model of the same layers, with the mask_token_id added.

        Raises ValueError if no model of mlx-lm has such layers, or there is no usable mask token.
        """
        layers = bool(config.get("attention_bias")), bool(config.get("qk_norm"))
        if layers not in FAMILIES:
            raise ValueError("no WeDLM model has both attention_bias and qk_norm")
        args = import_module(f"mlx_lm.models.{FAMILIES[layers]}").ModelArgs.from_dict(config)
        args.family, args.mask_token_id = FAMILIES[layers], find_mask_token(config)
        return args


def find_mask_token(config: dict[str, Any]) -> int:
    """Return a configuration's mask token, or else the fallback. Raises ValueError if that id is unusable."""
    named, size = config.get("mask_token_id"), int(config["vocab_size"])
    token = FALLBACK_MASK_TOKEN if named is None else int(named)
    origin = "that checkpoints without one use" if named is None else "of the configuration"
    if not 0 <= token < size:
        raise ValueError(
            f"the mask token {token} {origin} is not in the vocabulary of {size} tokens; "
            "its config.json can name another (mask_token_id)"
        )
    ends = config.get("eos_token_id")
    if token in (ends if isinstance(ends, list) else [ends]):
        raise ValueError(f"the mask token {token} {origin} ends answers; name another in config.json")
    return token


def Model(args: Any) -> Any:  # noqa: N802
    """Make the model; mlx-lm looks for this name. The model's mask token is never drawn from its logits."""
    family = import_module(f"mlx_lm.models.{args.family}").Model
    return type(family.__name__, (_NeverMask, family), {})(args)


class _NeverMask:
    """Sets the mask token's logit so that it is never drawn."""

    args: Any

    def __call__(self, *given: Any, **named: Any) -> mx.array:
        logits: mx.array = super().__call__(*given, **named)  # type: ignore[misc]
        return logits.at[..., self.args.mask_token_id].add(-mx.inf)


def keep_ends(path: str, *_: Any) -> bool:
    """Select the layers for mlx-lm's convert() to quantize: all but the embeddings and the output head."""
    return not any(name in path for name in ("embed_tokens", "lm_head"))


class _Config(PretrainedConfig):
    """Tells transformers, which loads the tokenizer, of the model type."""

    model_type = MODEL_TYPE


AutoConfig.register(MODEL_TYPE, _Config, exist_ok=True)
# Where mlx-lm looks for the model type.
sys.modules[f"mlx_lm.models.{MODEL_TYPE}"] = sys.modules[__name__]
