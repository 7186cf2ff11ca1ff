"""Find heads in folders, by file names, array names and configurations.

    in the model's folder   its own shards: `mtp.*` (Qwen3-Next, 3.5, Nemotron-H), a layer after the last one
                            with `eh_proj` (DeepSeek, GLM), or `model.mtp_layers.*` (MiMo)
                            a file beside them: model-mtp.safetensors, mtp.safetensors or
                            mtp/weights.safetensors
    a folder of its own     config.json with a model_type such as qwen3_5_mtp, or that of another kind (KINDS)

Qwen publishes norms as weight - 1; mlx-lm adds the 1 when it converts a model. Files beside the shards were
made by converters that added it. A file's own statement takes precedence: `format` in its metadata is pt for
published arrays and mlx for converted ones, and `mtp_norm_encoding` in config.json may be delta.

Source: the checkpoints and converters named; mlx-vlm, vllm-mlx and MTPLX, for their layouts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.utils import MODEL_REMAPPING

from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import HeadKind
from reprise.engine.model.architectures import name_in_first_layer, name_in_head, rename
from reprise.engine.model.files.folder_reader import SafetensorsFile, read_header, read_json
from reprise.engine.model.hub import not_a_model
from reprise.engine.speculative.heads import assistant, dflash, eagle
from reprise.engine.speculative.heads.head import Published, text_config
from reprise.engine.speculative.heads.mtp import FAMILIES

MTP_SUFFIX = "_mtp"
"""Ends the model type of an MTP head in a folder of its own; before it stands its family."""


SIDE_FILES = ("model-mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors")
"""Files with an MTP head beside a model's own."""

MTP = "MTP head"
"""The name of this kind, for people."""

NAMES: dict[HeadKind, str] = {"mtp": MTP, "eagle3": eagle.PUBLISHED.name, "dflash": "DFlash drafter"}
"""The names of draft types that need a head, for people."""

KINDS = (eagle.PUBLISHED, *dflash.PUBLISHED, assistant.PUBLISHED)
"""What is published in a folder of its own, besides MTP heads."""

OTHER_DRAFTERS = ("dflash", "eagle", "medusa", "dspark", "speculator", "hydra", "assistant", "mtp")
"""Parts of the architectures and model types of drafters that read hidden states."""

_PREFIX = re.compile(r"^(?:mtp\.|model\.)?(?:mtp_block\.)?")
"""Before the names in folders that mlx-vlm writes."""

_DELTA = ("delta", "delta_plus_one", "mlx_delta")


_TYPES: dict[str, Any] = {"architectures": (list, str), "text_config": dict, "dflash_config": dict}
"""Types of the entries that tell kinds of folders apart."""


@dataclass(frozen=True)
class FoundHead:
    """A head found in a folder; its arrays are not read yet.

    draft_type: what requests and settings call it. name: of its kind, for people.
    source: the folder or file, for people.
    published: how its kind is made; None for an MTP head. family: key in FAMILIES of an MTP head.
    config: the configuration of an MTP head's layers, or the whole one of another kind.
    names: file -> array's name in the file -> its name in the head's module, "" if the array is not used.
    adds_one: whether to add 1 to the file's norms. num_bytes: bytes of the arrays that are used.
    """

    draft_type: HeadKind
    name: str
    source: str
    published: Published | None
    family: str
    config: Mapping[str, Any]
    names: Mapping[Path, Mapping[str, str]]
    adds_one: bool
    num_bytes: int

    @property
    def described(self) -> str:
        """The name of its kind with an article."""
        return f"{'an' if self.name.startswith(('EAGLE', 'MTP')) else 'a'} {self.name}"

    @property
    def depth(self) -> int:
        """The number of an MTP head's layers. Only the first is used, applied again to its own output."""
        numbers = self.config.get("mtp_num_hidden_layers"), self.config.get("num_nextn_predict_layers")
        return int(next(filter(None, numbers), 1))


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json.

    Raises ModelError if it is missing, is not a JSON object, or has entries of other types.
    """
    if not (folder / "config.json").is_file():
        raise not_a_model(folder)
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as fault:
        raise ModelError(f"cannot read {folder / 'config.json'}: {fault}") from fault
    for name, kind in _TYPES.items():
        if config.get(name) and not isinstance(config[name], kind):
            raise ModelError(f"{folder / 'config.json'} has an entry that cannot be read: {name}")
    return config


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
            names = _own_names([file], num_layers) or _bare_names([file])
            is_raw = file.metadata.get("format") == "pt"
            found.append(_own_head(str(path), config, names, [file], is_raw))
    return found


def identify(folder: Path) -> FoundHead | None:
    """Return the head that a folder holds; None if it holds an ordinary model.

    Raises ModelError if the folder holds a head that is not supported, or cannot be read.
    """
    config = read_config(folder)
    model_type = str(config.get("model_type", ""))
    is_mtp = model_type.endswith(MTP_SUFFIX) and model_type.removesuffix(MTP_SUFFIX) in FAMILIES
    published = next((kind for kind in KINDS if kind.describes(config)), None)
    if not is_mtp and published is None:
        architectures = map(str, config.get("architectures") or ())
        _refuse_others(folder, [*architectures, model_type], str(config.get("speculators_model_type") or ""))
        return None
    files = [read_header(path) for path in sorted(folder.glob("*.safetensors"))]
    if not files:
        remedy = "convert its .bin file to one" if any(folder.glob("*.bin")) else "download it again"
        raise ModelError(f"{folder} has no safetensors file; {remedy}")
    num_bytes = sum(file.num_bytes for file in files)
    if published:
        names = {file.path: {name: published.place(name) for name in file.arrays} for file in files}
        return FoundHead(
            published.draft_type, published.name, str(folder), published, "", config, names, False, num_bytes
        )
    if "text_config" not in config:
        raise ModelError(f"{folder / 'config.json'} has no text_config, which describes the head's layer")
    family = model_type.removesuffix(MTP_SUFFIX)
    layers = text_config(config)
    if family == "qwen3_5" and str(layers.get("model_type", "")).startswith("qwen3_next"):
        family = "qwen3_next"
    names = _bare_names(files)
    adds_one = FAMILIES[family].norms_lack_one and _says_delta(config)
    return FoundHead("mtp", MTP, str(folder), None, family, layers, names, adds_one, num_bytes)


def _refuse_others(folder: Path, names: list[str], speculator: str) -> None:
    if speculator:
        raise ModelError(
            f"{folder} is a drafter in the format of speculators ({speculator}), of which only EAGLE-3 heads "
            "are supported. Use one in another format, such as z-lab's or deepseek-ai's for DFlash and "
            "DSpark, an ordinary model, or no --draft-model"
        )
    for name in names:
        if any(part in name.lower() for part in OTHER_DRAFTERS):
            others = ", ".join(f"{kind.name}s" for kind in KINDS)
            raise ModelError(
                f"{folder} is a {name}, a drafter of hidden states that is not supported; supported are "
                f"{others}, and MTP heads of {', '.join(FAMILIES)}. Use one of these, an ordinary model, "
                "or no --draft-model"
            )


def _own_names(files: list[SafetensorsFile], num_layers: int) -> dict[Path, dict[str, str]]:
    """Return the names of a head's arrays among a model's: file -> name there -> name in the module."""
    found: dict[Path, dict[str, str]] = {}
    for file in files:
        for name in file.arrays:
            if (own := name_in_head(name, num_layers)) is not None:
                found.setdefault(file.path, {})[name] = own
    return found


def _bare_names(files: list[SafetensorsFile]) -> dict[Path, dict[str, str]]:
    """Return the names of arrays in files of a head alone, as _own_names() does."""
    bare = {file.path: {name: _PREFIX.sub("", name) for name in file.arrays} for file in files}
    is_layer = any("eh_proj.weight" in names.values() for names in bare.values())
    name_of = rename if is_layer else name_in_first_layer
    return {path: {name: name_of(one) for name, one in names.items()} for path, names in bare.items()}


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
    return FoundHead("mtp", MTP, source, None, family, layers, names, adds_one, num_bytes)


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
