"""Say in words what quantised and dequantised weights mean on the device that MLX computes on.

MLX's CPU build multiplies quantised weights token by token: a step of several tokens takes as long as as
many steps of one, so no draft saves time there. In bfloat16 a step of one token takes about as long as with
4-bit weights, and one of 8 tokens about three times as long. With scales of 16 bits its kernels for quantised
weights take many times as long as with scales of float32, whatever the width.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

DEQUANTISED_FROM = "dequantised_from"
"""Key in config.json: the type in a GGUF file that a conversion undid for the sake of drafts."""

_COST = "with quantised weights MLX's CPU build takes as long for a step of n tokens as for n steps"
_SLOW = "; with scales of {} each step takes many times as long as with float32"
_WAY_OUT = "; in bfloat16 they can: `reprise convert MODEL DIR --dequantize --dtype bfloat16`"


def quantised_steps_gain() -> bool:
    """Whether a step of several tokens with quantised weights takes less time than as many steps of one."""
    return mx.default_device().type != mx.DeviceType.cpu


def describe_weights(config: Mapping[str, Any], scales: str) -> str:
    """Say what a model's weights mean for drafts on this device; return "" if there is nothing to say.

    config: of config.json. scales: the type of most numbers that are not quantised, such as "float32".
    """
    if config.get("quantization") or config.get("quantization_config"):
        if quantised_steps_gain():
            return ""
        slow = "" if scales == "float32" else _SLOW.format(scales)
        return f"{_COST}, so drafts cannot pay here{slow}{_WAY_OUT}"
    kind = config.get(DEQUANTISED_FROM)
    if not isinstance(kind, str):
        return ""
    return f"dequantised from {kind}" + ("" if quantised_steps_gain() else f": {_COST}, and no draft pays")
