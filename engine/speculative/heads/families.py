"""How MTP heads differ by the family of their target."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mlx.nn.layers.base import Module


@dataclass(frozen=True)
class Family:
    """What is particular to the MTP heads of one family.

    module: of mlx-lm, with the family's layers. layer, args: the names of its classes.
    index: the number of a layer, from its configuration, that is of the kind of the head's.
    reads_normed: whether the head reads the target's state after the final norm, else that before it.
    recurses_normed: whether its own output is normed before it takes the place of the state.
    hides_first: whether the embedding of the token after position 0 is zeros.
    masks_are_arrays: whether the layer takes masks as arrays alone.
    """

    module: str
    layer: str
    args: str = "ModelArgs"
    index: Callable[[Any], int] = lambda args: int(args.num_hidden_layers)
    reads_normed: bool = True
    recurses_normed: bool = True
    hides_first: bool = False
    masks_are_arrays: bool = False

    def taps(self, config: dict[str, Any]) -> tuple[int, ...]:
        """Return the taps of a head; see Head."""
        return () if self.reads_normed else (int(config["num_hidden_layers"]) - 1,)

    def make_args(self, config: dict[str, Any]) -> Any:
        """Return a configuration as mlx-lm has it. Raises whatever it raises, TypeError if fields lack."""
        return getattr(import_module(f"mlx_lm.models.{self.module}"), self.args).from_dict(config)

    def make_layer(self, config: dict[str, Any]) -> Module:
        """Make a layer with random weights, of the kind of the head's."""
        args = self.make_args(config)
        kind = getattr(import_module(f"mlx_lm.models.{self.module}"), self.layer)
        made: Module = kind(args, self.index(args)) if self.module != "llama" else kind(args)
        return made


def _full_attention(args: Any) -> int:
    return int(args.full_attention_interval) - 1


_QWEN3_NEXT = Family("qwen3_next", "Qwen3NextDecoderLayer", index=_full_attention)
_QWEN3_5 = Family("qwen3_5", "DecoderLayer", "TextModelArgs", index=_full_attention)
_GLM = Family("glm4_moe", "DecoderLayer", recurses_normed=False, hides_first=True)
_DEEPSEEK = Family(
    "deepseek_v3", "DeepseekV3DecoderLayer", recurses_normed=False, hides_first=True, masks_are_arrays=True
)

FAMILIES = {
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _GLM,
    "llama": Family("llama", "TransformerBlock"),
}
"""By model_type."""
