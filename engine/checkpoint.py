"""Describe a checkpoint: a model's folder, from its configuration and the headers of its files.

No weights are read. What depends on the architecture is found from a model of mlx-lm whose arrays are never
computed. Whether rows really share a forward pass is tried when the model is loaded (kv_cache/probes.py).
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils

from reprise.config.model_settings import display_name
from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.per_row import can_trim, count_bytes, is_recurrent, leaves, make_caches
from reprise.engine.model import wedlm
from reprise.engine.model.files.folder_reader import SafetensorsFile, check_files, read_header
from reprise.engine.model.files.model_folder import (
    MAX_LAYERS,
    excess,
    excess_of,
    find_context_tokens,
    find_longest,
    find_purpose,
    find_vectors,
    find_vision,
    missing_shards,
    missing_tokenizer,
    read_recipe,
    unknown_architecture,
)
from reprise.engine.model.hub import find_downloaded
from reprise.engine.model.loading import describe_weights, load_tokenizer
from reprise.engine.speculative.heads.formats import (
    SIDE_FILES,
    FoundHead,
    family_of,
    find_own_heads,
    identify,
    read_config,
)
from reprise.engine.speculative.heads.head import Shape, text_config
from reprise.engine.speculative.heads.loading import check_fit, choose
from reprise.engine.text.templates.chat_template import THOUGHT_SWITCHES

KINDS = {"embed": "embedding model", "rerank": "ranking model"}
"""Names of the kinds of models that do not generate."""

DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
"""The types in which models compute, by their names in safetensors files."""


@dataclass(frozen=True)
class HeadInfo:
    """A head in a model's folder. kind: its name for people. fault: why it cannot be used; None if it can."""

    kind: str
    source: str
    num_bytes: int
    num_layers: int
    fault: str | None


@dataclass(frozen=True)
class CacheInfo:
    """Bytes of a row's caches.

    token_bytes: per token, in the layers that keep every token. fixed_bytes: whatever the row's length.
    windows: (bytes per token, tokens) of each size of sliding window.
    has_known_kinds: whether the engine knows all kinds of these caches. Only then can rows share a forward
        pass, and be rolled back after a rejected draft.
    """

    token_bytes: int
    fixed_bytes: int
    windows: tuple[tuple[int, int], ...]
    has_known_kinds: bool


@dataclass(frozen=True)
class CheckpointInfo:
    """The facts about a model's folder.

    kind: "model", or the kind of head that the folder holds. num_layers, context_tokens, vocab_size: None if
        the configuration does not say. quantization: None if weights are not quantized.
    num_parameters: packed weights count unpacked, and heads in the same files count too.
    cache: None if it cannot be known without loading the model. drafters: draft types that the model allows.
    refused: the reasons why the model, or a head of it, would be refused.
    weights_note: how the weights' format affects drafting on this machine, as a sentence; may be empty.
    thought_switch: see Tokenizer.thought_switch.
    vectors, images: how the model makes vectors, and how it sees images, in words; empty if it does not.
    is_drafter: whether the folder holds a head of another model.
    """

    name: str
    folder: str
    kind: str
    architecture: str
    num_layers: int | None
    context_tokens: int | None
    vocab_size: int | None
    dtype: str
    quantization: Mapping[str, Any] | None
    weight_bytes: int
    num_parameters: int
    num_files: int
    cache: CacheInfo | None = None
    heads: tuple[HeadInfo, ...] = ()
    drafters: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    weights_note: str = ""
    thought_switch: Mapping[str, Any] | None = None
    vectors: str = ""
    images: str = ""
    is_drafter: bool = False


def check_folder(folder: Path) -> None:
    """Raise ModelError, with the text that `reprise info` shows, if loading this folder is bound to fail.

    Reads the folder's small files and the headers of the others, which takes no time compared with loading.
    """
    check_files(folder)
    head = None
    # A name that sounds like a drafter's is no reason to refuse a model.
    with suppress(ModelError):
        head = identify(folder)
    if head:
        raise ModelError(
            f"{folder} holds {head.described}, which cannot answer by itself: name it with --draft-model, "
            "and with --model the model that it was made for"
        )
    config = read_config(folder)
    files = [read_header(path) for path in _shards(folder)]
    refused = _missing_files(folder, files)
    is_known = "model_file" in config or find_purpose(folder, config) != "generate"
    unknown = None if is_known else unknown_architecture(config)
    faults = (*refused, *([unknown] if unknown else ()), *missing_tokenizer(folder))
    if fault := next(iter(faults), None) or excess_of(config, files):
        raise ModelError(f"the model {folder} cannot be served: {fault}")


def _shards(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("model*.safetensors")) if path.name not in SIDE_FILES]


def inspect_checkpoint(source: str) -> CheckpointInfo:
    """Describe a model's folder, or a head's.

    source: the folder, or the name of a model on the hub that has been downloaded.
    Raises ModelError if it is neither, or one of its files cannot be read.
    """
    folder = find_downloaded(source)
    check_files(folder)
    config = read_config(folder)
    try:
        return _inspect(folder, source, config)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as fault:
        raise ModelError(f"{folder / 'config.json'} has an entry that cannot be read: {fault!r}") from fault


def _inspect(folder: Path, source: str, config: dict[str, Any]) -> CheckpointInfo:
    files = [read_header(path) for path in _shards(folder)]
    refused = _missing_files(folder, files)
    try:
        head = identify(folder)
    except ModelError as fault:
        return replace(_describe(folder, source, config, files, "drafter"), refused=(str(fault),))
    if head is not None:
        made = _describe(folder, source, config, files, head.name)
        return replace(made, refused=refused, is_drafter=True)
    if (purpose := find_purpose(folder, config)) != "generate":
        recipe = read_recipe(folder, config)
        made = replace(
            _describe(folder, source, config, files, KINDS[purpose]),
            refused=refused,
            context_tokens=find_longest(config, recipe),
        )
        return replace(made, vectors=find_vectors(folder, config).describe()) if purpose == "embed" else made
    cache, unknown = find_cache(config, files)
    heads, head_faults = _describe_heads(folder, config)
    refused += ((unknown,) if unknown else ()) + head_faults + missing_tokenizer(folder)
    drafters: tuple[str, ...] = ()
    if cache is not None and cache.has_known_kinds:
        drafters = ("suffix", "ngram-mod", "ngram-simple", "draft-model")
        drafters += ("mtp",) if len(heads) == 1 and heads[0].fault is None else ()
        drafters += ("wedlm",) if config.get("model_type") == wedlm.MODEL_TYPE else ()
    made = _describe(folder, source, config, files, "model", heads)
    dtype = str(DTYPES.get(made.dtype, made.dtype)).rpartition(".")[2]
    note = describe_weights(config, dtype) if drafters else ""
    made = replace(made, cache=cache, drafters=drafters, refused=refused, weights_note=note)
    made = replace(made, thought_switch=_find_thought_switch(folder))
    vision = find_vision(folder, config)
    return replace(made, images=vision.describe()) if vision else made


def _describe(
    folder: Path,
    source: str,
    config: Mapping[str, Any],
    files: list[SafetensorsFile],
    kind: str,
    heads: tuple[HeadInfo, ...] = (),
) -> CheckpointInfo:
    text = text_config(config)
    quantization = config.get("quantization") or config.get("quantization_config")
    return CheckpointInfo(
        name=display_name(source),
        folder=str(folder),
        kind=kind,
        architecture=str(config.get("model_type", "unknown")),
        num_layers=_number(text, "num_hidden_layers", "n_layers", "num_layers", "n_layer"),
        context_tokens=find_context_tokens(dict(config)),
        vocab_size=_number(text, "vocab_size"),
        dtype=_main_dtype(files),
        quantization=None if quantization is None else _uniform(quantization),
        # Those of a head in the model's own files count as the head's.
        weight_bytes=sum(file.num_bytes for file in files)
        - sum(head.num_bytes for head in heads if head.source == str(folder)),
        num_parameters=_count_parameters(files, quantization or {}),
        num_files=len(files),
        heads=heads,
    )


def _count_parameters(files: list[SafetensorsFile], quantization: Mapping[str, Any]) -> int:
    """Count the parameters: packed weights as unpacked, scales not at all."""
    arrays = {name: array for file in files for name, array in file.arrays.items()}
    count = 0
    for name, array in arrays.items():
        layer, _, part = name.rpartition(".")
        if part in ("scales", "biases") and f"{layer}.scales" in arrays:
            continue
        own = quantization.get(layer)
        bits = (own if isinstance(own, Mapping) else quantization).get("bits")
        is_packed = part == "weight" and f"{layer}.scales" in arrays and bits
        count += array.size * 32 // int(bits) if is_packed and bits else array.size
    return count


def _number(config: Mapping[str, Any], *keys: str) -> int | None:
    return next((int(config[key]) for key in keys if config.get(key) is not None), None)


def _uniform(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quantization of all layers; a configuration may name single layers beside it."""
    return {key: value for key, value in quantization.items() if isinstance(value, str | int | float)}


def _main_dtype(files: list[SafetensorsFile]) -> str:
    """Return the most common dtype among those that models compute in; empty if there is none."""
    sizes: Counter[str] = Counter()
    for file in files:
        for array in file.arrays.values():
            if array.dtype in DTYPES:
                sizes[array.dtype] += array.size
    return max(sizes, key=lambda dtype: sizes[dtype], default="")


def _find_thought_switch(folder: Path) -> Mapping[str, Any] | None:
    texts = [
        path for path in folder.glob("*") if path.match("chat_template*") or path.match("tokenizer_config*")
    ]
    names = [name.encode() for switch in THOUGHT_SWITCHES for name in switch]
    # Loading a tokenizer takes a second, and few templates have a switch.
    if not any(name in path.read_bytes() for path in texts if path.is_file() for name in names):
        return None
    try:
        return load_tokenizer(folder).thought_switch
    # A tokenizer's files may hold anything; what is missing is refused elsewhere.
    except Exception:
        return None


def _missing_files(folder: Path, files: list[SafetensorsFile]) -> tuple[str, ...]:
    """Name the files that the folder must have and lacks."""
    missing: tuple[str, ...] = () if files else (f"{folder} has no safetensors file",)
    return missing + missing_shards(folder)


def find_cache(config: dict[str, Any], files: list[SafetensorsFile]) -> tuple[CacheInfo | None, str | None]:
    """Return the bytes of a row's caches and None, or None and the reason why the bytes are not known."""
    if "model_file" in config:
        return None, "it brings Python code of its own, which only --trust-remote-code runs"
    if unknown := unknown_architecture(config):
        return None, unknown
    try:
        # Not by the weights: a part of them may be missing.
        if fault := excess(config, MAX_LAYERS, MAX_LAYERS):
            raise ModelError(fault)
        model_class, args = mlx_lm.utils._get_classes(config)
        model = model_class(args.from_dict(deepcopy(config)))
        model.set_dtype(DTYPES.get(_main_dtype(files), mx.bfloat16))
        caches = make_caches(model)
        # Nothing of it is ever computed: the shapes are enough.
        model(mx.array([[0]]), cache=caches)
        return _measure(caches), None
    except Exception as fault:
        return None, f"mlx-lm cannot build it from its configuration: {fault!r}"


def _measure(caches: list[Any]) -> CacheInfo:
    kept = count_bytes(caches)
    are_known = all(can_trim(cache) or is_recurrent(cache) for cache in leaves(caches))
    windows = tuple((each, window) for window, each in kept.windows.items())
    return CacheInfo(kept.token_bytes, kept.fixed_bytes, windows, are_known)


def _describe_heads(folder: Path, config: dict[str, Any]) -> tuple[tuple[HeadInfo, ...], tuple[str, ...]]:
    """Return the heads in a model's folder, and why some of them cannot be used."""
    try:
        found = find_own_heads(folder, config)
    except ModelError as fault:
        return (), (str(fault),)
    text = text_config(config)
    shape = Shape(
        family_of(config), config, int(text.get("num_hidden_layers") or 0), int(text.get("vocab_size") or 0)
    )
    heads = tuple(_describe_head(one, shape) for one in found)
    faults = [head.fault for head in heads if head.fault]
    try:
        choose(found)
    except ModelError as fault:
        faults.append(str(fault))
    return heads, tuple(faults)


def _describe_head(found: FoundHead, shape: Shape) -> HeadInfo:
    fault = None
    try:
        check_fit(found, shape)
    except ModelError as misfit:
        fault = str(misfit)
    return HeadInfo(found.name, found.source, found.num_bytes, found.depth, fault)
