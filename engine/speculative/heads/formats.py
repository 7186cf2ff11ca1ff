"""Find heads in folders, by file names, array names and configurations.

    in the model's folder   its own shards: `mtp.*` (Qwen3-Next, 3.5), or a layer after the last one with
                            `eh_proj` (DeepSeek V3, GLM-4-MoE)
                            a file beside them: model-mtp.safetensors, mtp.safetensors or
                            mtp/weights.safetensors
    a folder of its own     config.json with a model_type such as qwen3_5_mtp, or that of a DFlash drafter

Qwen publishes norms as weight - 1; mlx-lm adds the 1 when it converts a model. Files beside the shards were
made by converters that added it. A file's own statement takes precedence: `format` in its metadata is pt for
published arrays and mlx for converted ones, and `mtp_norm_encoding` in config.json may be delta.

Source: the checkpoints and converters named; mlx-vlm, vllm-mlx and MTPLX, for their layouts.
"""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.utils import MODEL_REMAPPING

from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import HeadKind
from reprise.engine.model.architectures import name_in_first_layer, name_in_head, rename
from reprise.engine.model.files.folder_reader import SafetensorsFile, read_header, read_json
from reprise.engine.model.hub import not_a_model

MTP_SUFFIX = "_mtp"
"""Ends the model type of an MTP head in a folder of its own; before it stands its family."""


@dataclass(frozen=True)
class Family:
    """The particulars of one target family's MTP heads.

    module: the module of mlx-lm with the family's layers. layer, args: the names of two classes in it.
    index: returns, from the target's configuration, the number of a layer that is like the head's.
    recurses_normed: whether the head's output is normed before it replaces the state.
    hides_first: whether zeros replace the embedding of the token after position 0.
    masks_are_arrays: whether the layer takes masks only as arrays.
    norms_lack_one: whether published norms are weights minus 1.
    cleaned_by_model: whether mlx-lm's conversion of the target's layers also fits the head's.
    """

    module: str
    layer: str
    args: str = "ModelArgs"
    index: Callable[[Any], int] = lambda args: int(args.num_hidden_layers)
    recurses_normed: bool = True
    hides_first: bool = False
    masks_are_arrays: bool = False
    norms_lack_one: bool = False
    cleaned_by_model: bool = False

    def make_args(self, config: Mapping[str, Any]) -> Any:
        """Make mlx-lm's arguments from a configuration. Raises TypeError or others of mlx-lm's exceptions."""
        # mlx-lm renames entries of what it is given.
        return getattr(self._module, self.args).from_dict(deepcopy(dict(config)))

    def convert(self, weights: dict[str, mx.array], config: Mapping[str, Any]) -> dict[str, mx.array]:
        """Convert a head's arrays, published or converted, to those of our modules.

        weights: by module path, but experts are separate and mlx-lm's splits are not made yet.
        Raises whatever mlx-lm raises if some are missing.
        """
        if not self.cleaned_by_model:
            return _join_experts(weights)
        args = replace(self.make_args(config), num_hidden_layers=1)
        named = {f"model.{name}": array for name, array in weights.items()}
        cleaned = self._module.Model.sanitize(SimpleNamespace(args=args), named)
        return {name.removeprefix("model."): array for name, array in cleaned.items()}

    def make_layer(self, config: Mapping[str, Any]) -> Module:
        """Make a head's layer, with random weights, from its configuration."""
        args, kind = self.make_args(config), getattr(self._module, self.layer)
        made: Module = kind(args, self.index(args)) if self.module != "llama" else kind(args)
        return made

    @property
    def _module(self) -> Any:
        return import_module(f"mlx_lm.models.{self.module}")


def _join_experts(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return Qwen's weights with all experts in one array; published ones are separate or fused."""
    joined: dict[str, mx.array] = {}
    alone: dict[str, dict[int, mx.array]] = {}
    for name, array in weights.items():
        if match := _EXPERT.fullmatch(name):
            alone.setdefault(f"{match[1]}.switch_mlp.{match[3]}", {})[int(match[2])] = array
        elif match := _FUSED.fullmatch(name):
            gate, up = mx.split(array, 2, axis=-2)
            joined |= {
                f"{match[1]}.switch_mlp.gate_proj.weight": gate,
                f"{match[1]}.switch_mlp.up_proj.weight": up,
            }
        else:
            joined[name.replace(".experts.down_proj", ".switch_mlp.down_proj.weight")] = array
    for name, experts in alone.items():
        joined[name] = mx.stack([experts[number] for number in sorted(experts)])
    return joined


_EXPERT = re.compile(r"(.+\.mlp)\.experts\.(\d+)\.(.+)")
_FUSED = re.compile(r"(.+\.mlp)\.experts\.gate_up_proj")


def _full_attention(args: Any) -> int:
    return int(args.full_attention_interval) - 1


_QWEN3_NEXT = Family("qwen3_next", "Qwen3NextDecoderLayer", index=_full_attention, norms_lack_one=True)
_QWEN3_5 = Family("qwen3_5", "DecoderLayer", "TextModelArgs", index=_full_attention, norms_lack_one=True)
_GLM = Family("glm4_moe", "DecoderLayer", recurses_normed=False, hides_first=True, cleaned_by_model=True)
_DEEPSEEK = replace(_GLM, module="deepseek_v3", layer="DeepseekV3DecoderLayer", masks_are_arrays=True)

FAMILIES = {
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _GLM,
    "llama": Family("llama", "TransformerBlock"),
}
"""By model_type."""


NAMES: dict[HeadKind, str] = {"mtp": "MTP head", "dflash": "DFlash drafter"}
"""The names of kinds of heads, for people."""

SIDE_FILES = ("model-mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors")
"""Files with an MTP head beside a model's own."""

DFLASH = "DFlashDraftModel"
"""Architecture of the DFlash drafters that are known here."""

OTHER_DRAFTERS = ("dflash", "eagle", "medusa", "dspark", "speculator", "hydra", "assistant", "mtp")
"""Parts of the architectures and model types of drafters that read hidden states."""

_DELTA = ("delta", "delta_plus_one", "mlx_delta")


@dataclass(frozen=True)
class FoundHead:
    """A head found in a folder; its arrays are not read yet.

    source: the folder or file, for people. family: key in FAMILIES of an MTP head.
    config: the configuration of an MTP head's layers, or of a DFlash drafter.
    names: file -> array's name in the file -> its name in the head's module, "" if the array is not used.
    adds_one: whether to add 1 to the file's norms. num_bytes: bytes of the arrays that are used.
    """

    kind: HeadKind
    source: str
    family: str
    config: Mapping[str, Any]
    names: Mapping[Path, Mapping[str, str]]
    adds_one: bool
    num_bytes: int

    @property
    def depth(self) -> int:
        """The number of an MTP head's layers. Only the first is used, applied again to its own output."""
        numbers = self.config.get("mtp_num_hidden_layers"), self.config.get("num_nextn_predict_layers")
        return int(next(filter(None, numbers), 1))


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json. Raises ModelError if it is missing or not a JSON object."""
    if not (folder / "config.json").is_file():
        raise not_a_model(folder)
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as fault:
        raise ModelError(f"cannot read {folder / 'config.json'}: {fault}") from fault
    return config


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's part of a configuration; all of it if it has no such part."""
    return dict(config.get("text_config") or config)


def family_of(config: Mapping[str, Any]) -> str:
    """Return mlx-lm's name of a model's architecture."""
    model_type = str(config.get("model_type", "unknown"))
    return str(MODEL_REMAPPING.get(model_type, model_type))


def find_own_heads(folder: Path, config: Mapping[str, Any]) -> list[FoundHead]:
    """Return the MTP heads in a model's folder; several if its shards and a file beside them have one each.

    config: the model's. A head of an unknown family is found too.
    Raises ModelError if a file is truncated.
    """
    beside = [folder / name for name in SIDE_FILES]
    shards = [read_header(path) for path in sorted(folder.glob("model*.safetensors")) if path not in beside]
    num_layers = int(text_config(config).get("num_hidden_layers") or 0)
    found = []
    if names := _own_names(shards, num_layers):
        holders = [shard for shard in shards if shard.path in names]
        is_raw = any(_is_published(shard, shards) for shard in holders)
        found.append(_own_head(str(folder), config, names, holders, is_raw))
    for path in beside:
        if path.is_file():
            file = read_header(path)
            names = _own_names([file], num_layers) or {path: _bare_names(file)}
            is_raw = file.metadata.get("format") == "pt"
            found.append(_own_head(str(path), config, names, [file], is_raw))
    return found


def identify(folder: Path) -> FoundHead | None:
    """Return the head that a folder holds; None if it holds an ordinary model.

    Raises ModelError if the folder holds a head that is not supported, or cannot be read.
    """
    config = read_config(folder)
    model_type = str(config.get("model_type", ""))
    architectures = [str(name) for name in config.get("architectures") or ()]
    is_mtp = model_type.endswith(MTP_SUFFIX) and model_type.removesuffix(MTP_SUFFIX) in FAMILIES
    if not is_mtp and architectures != [DFLASH]:
        _refuse_others(folder, [*architectures, model_type, str(config.get("speculators_model_type", ""))])
        return None
    files = [read_header(path) for path in sorted(folder.glob("*.safetensors"))]
    if not files:
        raise ModelError(f"{folder} has no safetensors file; download it again")
    num_bytes = sum(file.num_bytes for file in files)
    if not is_mtp:
        bare = {file.path: {name: name.removeprefix("model.") for name in file.arrays} for file in files}
        return FoundHead("dflash", str(folder), "", config, bare, False, num_bytes)
    if "text_config" not in config:
        raise ModelError(f"{folder / 'config.json'} has no text_config, which describes the head's layer")
    family = model_type.removesuffix(MTP_SUFFIX)
    layers = text_config(config)
    if family == "qwen3_5" and str(layers.get("model_type", "")).startswith("qwen3_next"):
        family = "qwen3_next"
    names = {file.path: _bare_names(file) for file in files}
    adds_one = FAMILIES[family].norms_lack_one and _says_delta(config)
    return FoundHead("mtp", str(folder), family, layers, names, adds_one, num_bytes)


def _refuse_others(folder: Path, names: list[str]) -> None:
    for name in names:
        if any(part in name.lower() for part in OTHER_DRAFTERS):
            raise ModelError(
                f"{folder} is a {name}, a drafter of hidden states that is not supported; supported are MTP "
                f"heads of {', '.join(FAMILIES)}, and DFlash drafters ({DFLASH}). Use one of these, an "
                "ordinary model, or no --draft-model"
            )


def _own_names(files: list[SafetensorsFile], num_layers: int) -> dict[Path, dict[str, str]]:
    """Return the names of a head's arrays among a model's: file -> name there -> name in the module."""
    found: dict[Path, dict[str, str]] = {}
    for file in files:
        for name in file.arrays:
            if (own := name_in_head(name, num_layers)) is not None:
                found.setdefault(file.path, {})[name] = own
    return found


def _bare_names(file: SafetensorsFile) -> dict[str, str]:
    name_of = rename if "eh_proj.weight" in file.arrays else name_in_first_layer
    return {name: name_of(name.removeprefix("mtp.")) for name in file.arrays}


def _own_head(
    source: str,
    config: Mapping[str, Any],
    names: Mapping[Path, Mapping[str, str]],
    files: list[SafetensorsFile],
    is_raw: bool,
) -> FoundHead:
    family, layers = family_of(config), text_config(config)
    lacks_one = family in FAMILIES and FAMILIES[family].norms_lack_one
    num_bytes = sum(
        file.arrays[name].num_bytes for file in files for name, own in names[file.path].items() if own
    )
    adds_one = lacks_one and (is_raw or _says_delta(config))
    return FoundHead("mtp", source, family, layers, names, adds_one, num_bytes)


def _is_published(holder: SafetensorsFile, shards: list[SafetensorsFile]) -> bool:
    """Return whether arrays are as published; without metadata, judge by convolutions, like mlx-lm."""
    if "format" in holder.metadata:
        return holder.metadata["format"] != "mlx"
    arrays = [one for shard in shards for one in shard.arrays.items()]
    return any(array.shape[-1] != 1 for name, array in arrays if "conv1d.weight" in name)


def _says_delta(config: Mapping[str, Any]) -> bool:
    said = [config.get("mtp_norm_encoding"), config.get("mtplx_mtp_norm_encoding")]
    if isinstance(of_mtp := config.get("mtplx_mtp_quantization"), dict):
        said += [of_mtp.get("norm_encoding"), of_mtp.get("norm_weight_encoding")]
    return any(str(value).lower() in _DELTA for value in said)
