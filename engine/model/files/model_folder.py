"""Describe a model's folder from its small files: its purpose, whether it is complete, how it embeds.

This is for lists of many models; checkpoint.py says more. No weights are read and no model is built, so a
folder that is complete by this may still fail to load.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import mlx_lm.utils

from reprise.engine.interface.embeddings import Dense, EmbeddingInfo, Pooling, Purpose, Recipe
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.images import VisionInfo
from reprise.engine.interface.models import AnswerLimits, SamplingDefaults
from reprise.engine.model.files.folder_reader import (
    MAX_INDEX_BYTES,
    SafetensorsFile,
    check_files,
    find_files,
    read_bytes,
    read_header,
    read_json,
    read_object,
)
from reprise.engine.model.files.image_processor import read_vision
from reprise.engine.vision.families import TOWERS, tower_type
from reprise.engine.vision.weights import is_of_tower

log = logging.getLogger("reprise.engine")

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
}
_LIMITS: dict[str, tuple[float, float]] = {
    "max_new_tokens": (1, 2**31 - 1),
    # Not one of transformers: the bundled model's own.
    "loop_guard_tokens": (0, 2**31 - 1),
}
_WHOLE = {"top_k", *_LIMITS}


def read_sampling_defaults(folder: Path) -> SamplingDefaults:
    """Return the sampling settings in a folder's generation_config.json; none without that file.

    Values that are invalid in a request are skipped and logged.
    """
    return SamplingDefaults(**_read_within(folder, _RANGES))


def read_answer_limits(folder: Path) -> AnswerLimits:
    """Return the answer limits in a folder's generation_config.json; none without that file."""
    found = _read_within(folder, _LIMITS)
    return AnswerLimits(found.get("max_new_tokens"), found.get("loop_guard_tokens"))


def _read_within(folder: Path, ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    given = read_object(folder / "generation_config.json")
    found: dict[str, Any] = {}
    for name, (low, high) in ranges.items():
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            log.warning("generation_config.json has %s %r, which is left out", name, value)
        else:
            found[name] = int(value) if name in _WHOLE else float(value)
    return found


INDEX = "model.safetensors.index.json"
"""File that names the shards of a model."""

MAX_LAYERS = 4096
"""Maximum number of layers, and of experts in each, that a configuration may name.

Known models have 126 and 512."""

MAX_MISSING = 100
"""Maximum number of missing files that are named."""

MAX_FAULT_CHARACTERS = 500
"""Length at which the reason why a model cannot be loaded is cut: names from its files may be in it."""

_SHARD = re.compile(r"-(\d+)-of-(\d+)\.safetensors")
_COUNTS = re.compile(r"(?:.*_)?(?:num|n)_(?:\w+_)?(?:layer|expert)s?|depth")
"""Entries of configurations that say how often a part of the model is built."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.*", "*.tiktoken")


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a model. name: the folder's name, or the model's name on the hub.

    num_bytes: size of its files on disk. weight_bytes: size of its safetensors files.
    context_tokens: length of the model's context; None if its configuration does not say.
    fault: why the model cannot be loaded; None if nothing is known to prevent it. purpose: what it is for.
    is_whole: whether its download has ended.
    embedding: how it embeds, or None. vision: how it encodes images, or None.
    """

    name: str
    path: Path
    num_bytes: int
    weight_bytes: int = 0
    context_tokens: int | None = None
    fault: str | None = None
    is_whole: bool = True
    purpose: Purpose = "generate"
    embedding: EmbeddingInfo | None = None
    vision: VisionInfo | None = None


def describe_folder(path: Path, name: str | None = None) -> ModelFolder:
    """Describe the folder of a model, whole or not. name: by default the folder's own."""
    files = {file: found.st_size for file, found in find_files(path).items()}
    weights = [file for file in files if file.match("model*.safetensors") and file.parent == path]
    config: dict[str, Any] = {}
    purpose: Purpose = "generate"
    context_tokens = embedding = vision = None
    try:
        check_files(path)
        config = _read_config(path)
        purpose = find_purpose(path, config)
        context_tokens = find_context_tokens(config)
        fault = _find_fault(path, config, files)
        embedding = find_vectors(path, config) if purpose == "embed" else None
        vision = find_vision(path, config) if purpose == "generate" else None
    except ModelError as error:
        fault = str(error)
    # Its files may hold anything.
    except Exception as error:
        fault = f"config.json cannot be read: {error}"
    return ModelFolder(
        name=path.resolve().name if name is None else name,
        path=path,
        num_bytes=sum(files.values()),
        weight_bytes=sum(files[file] for file in weights),
        context_tokens=context_tokens,
        fault=fault and readable(fault),
        purpose=purpose,
        embedding=embedding,
        vision=vision,
    )


def find_vision(path: Path, config: dict[str, Any]) -> VisionInfo | None:
    """Describe how a folder's model encodes images, from its small files; None if it does not.

    config: its config.json. The tower's arrays are not checked here, so the model may still load as a text
        model.
    """
    if not config.get("vision_config") or tower_type(config) not in TOWERS:
        return None
    return read_vision(config, path) if any(map(is_of_tower, _array_names(path))) else None


def _array_names(path: Path) -> Iterator[str]:
    """Yield the names of a model's arrays, by its index or its files. Raises ModelError."""
    try:
        yield from read_json(path / INDEX, MAX_INDEX_BYTES)["weight_map"]
        return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for file in path.glob("model*.safetensors"):
        yield from read_header(file).arrays


def missing_shards(folder: Path) -> tuple[str, ...]:
    """Return a fault for each missing safetensors file, by the index or the numbers in others' names."""
    try:
        index = read_json(folder / INDEX, MAX_INDEX_BYTES)
        named = {str(name) for name in index["weight_map"].values()}
    except FileNotFoundError:
        return _missing_numbers(folder)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as fault:
        return (f"{INDEX} cannot be read: {fault!r}",)
    absent = islice((name for name in sorted(named) if not (folder / name).is_file()), MAX_MISSING)
    return tuple(f"{name} is missing, which the index names; download it" for name in absent)


def missing_tokenizer(folder: Path) -> tuple[str, ...]:
    """Return a fault if a folder has no tokenizer, else nothing."""
    if any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        return ()
    return ("no tokenizer; it may be a drafter, which --draft-model takes, or a part of another model",)


def _missing_numbers(folder: Path) -> tuple[str, ...]:
    shards = [_SHARD.search(file.name) for file in folder.glob("model*.safetensors")]
    numbers = {int(shard[1]) for shard in shards if shard}
    count = max((int(shard[2]) for shard in shards if shard), default=0)
    # Not a set of all: a name may speak of any number of files.
    absent = islice((number for number in range(1, count + 1) if number not in numbers), MAX_MISSING)
    return tuple(f"file {number} of {count} of the weights is missing; download it" for number in absent)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / "config.json")
    except FileNotFoundError:
        return {}
    if not isinstance(config, dict):
        raise ValueError("it is no object")
    return config


def _find_fault(folder: Path, config: dict[str, Any], files: Iterable[Path]) -> str | None:
    if not any(folder.glob("model*.safetensors")):
        other = next((file.suffix for file in files if file.suffix in (".gguf", ".bin", ".pt", ".npz")), None)
        return "no model*.safetensors" + (f", but {other} files, which mlx-lm does not load" if other else "")
    if not config:
        return "no config.json"
    if missing := missing_shards(folder):
        return missing[0]
    if missing := missing_tokenizer(folder):
        return missing[0]
    names = [*_array_names(folder)]
    if "fc.weight" in names or "model.fc.weight" in names:
        # It joins what a drafter reads; no model has one.
        return "a drafter, which --draft-model takes"
    if fault := excess(config, len(names)):
        return fault
    # Code that comes with a model runs only with --trust-remote-code, when the model is loaded.
    return None if "model_file" in config else unknown_architecture(config)


def check_loadable(folder: Path) -> None:
    """Raise ModelError if loading a folder could hang or build parts without end.

    Reads the headers of the weights, in negligible time.
    """
    check_files(folder)
    try:
        config = _read_config(folder)
    except ValueError as fault:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {fault}") from fault
    if too_many := excess_of(config, map(read_header, folder.glob("model*.safetensors"))):
        raise ModelError(too_many)


def excess_of(config: dict[str, Any], files: Iterable[SafetensorsFile]) -> str | None:
    """Return an error if a configuration has more layers or experts than its files can hold, else None."""
    shapes = [array.shape for file in files for array in file.arrays.values()]
    return excess(config, len(shapes), max((size for shape in shapes for size in shape), default=0))


def excess(config: dict[str, Any], num_arrays: int, largest: int | None = None) -> str | None:
    """Return an error if a configuration has more layers or experts than the weights can hold, else None.

    largest: the largest dimension of any array, along which experts may be stacked; None if unknown.
    """
    for name, count in _counts(config):
        limit = MAX_LAYERS
        if "expert" not in name:
            limit = min(limit, num_arrays)
        elif largest is not None:
            limit = min(limit, max(largest, num_arrays))
        if count > limit:
            return f"config.json has {name} {count}; with these weights it can be {limit} at most"
    return None


def _counts(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the counts of things to build in a configuration and its parts."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _counts(value)
        elif isinstance(value, int) and _COUNTS.fullmatch(name):
            yield name, value


def readable(fault: str) -> str:
    """Make a reason fit for clients: of limited length, with only characters that can be encoded."""
    return fault.encode("utf-8", "replace").decode()[:MAX_FAULT_CHARACTERS]


def unknown_architecture(config: dict[str, Any]) -> str | None:
    """Return a fault if neither this program nor mlx-lm knows a configuration's architecture, else None."""
    if config.get("model_type") in ENCODERS:
        return None
    try:
        mlx_lm.utils._get_classes(config)
    except Exception:
        return f"mlx-lm {version('mlx-lm')} does not know the architecture {config.get('model_type')}"
    return None


ROBERTAS = frozenset({"roberta", "xlm-roberta", "camembert"})
"""Model types whose positions follow that of the padding token."""

ENCODERS = ROBERTAS | {"bert", "modernbert", "nomic_bert", "new", "gte"}
"""Model types with weights that engine/embedding/encoder.py reads."""

GEMMA = "gemma3_text"
"""Model type of EmbeddingGemma, and of models that generate."""

MODULES = "modules.json"
"""File of sentence-transformers that names what follows the model: pooling, dense layers, normalization."""

LOGIT_SCORE = "LogitScore"
"""Module of sentence-transformers that rates a pair by the logits of two tokens."""


def find_purpose(folder: Path, config: dict[str, Any]) -> Purpose:
    """Return a model's purpose: to generate, embed or rank. config: of its config.json."""
    architecture = next(iter(config.get("architectures") or ()), "")
    if config.get("model_type") in ENCODERS:
        return "rerank" if str(architecture).endswith("ForSequenceClassification") else "embed"
    modules = folder / MODULES
    if not modules.is_file():
        # A model that attends to later tokens cannot generate. Gemma 4 says "vision" of those within images.
        is_bidirectional = config.get("use_bidirectional_attention") in (True, "all")
        sees_later = is_bidirectional or config.get("is_causal") is False
        return "embed" if sees_later else "generate"
    return "rerank" if LOGIT_SCORE.encode() in read_bytes(modules) else "embed"


CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
    "model_max_length",
)
"""Configuration keys of the longest sequence that a model was made for."""

UNSAID_CONTEXTS = {"gemma3": 131_072, "lfm2_vl": 128_000, "lfm2-vl": 128_000}
"""The same of model types whose configurations leave it to the defaults of transformers."""


def find_context_tokens(config: dict[str, Any]) -> int | None:
    """Return the longest sequence the model was made for; None if nothing says it.

    It is at most 2**31 - 1. Raises ValueError for a value that is no number.
    """
    for part in (config.get("text_config") or {}, config):
        for key in CONTEXT_KEYS:
            if part.get(key):
                return min(int(part[key]), 2**31 - 1)
    return UNSAID_CONTEXTS.get(str(config.get("model_type")))


_OLD_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
"""Flags of Pooling's configuration before it had pooling_mode."""

_NEW_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last", "max": "max"}

_PROMPTS = {
    "nomic_bert": {
        kind: f"{kind}: " for kind in ("search_query", "search_document", "clustering", "classification")
    },
    "gemma3_text": {"query": "task: search result | query: ", "document": "title: none | text: "},
}
"""Prompts with which models were trained, by their types, where folders do not name them."""


def read_recipe(folder: Path, config: dict[str, Any]) -> Recipe:
    """Read a model's recipe from sentence-transformers' files; the architecture decides what they leave out.

    Raises ModelError for unknown poolings or modules.
    """
    told = _read(folder / "config_sentence_transformers.json", {})
    known = _PROMPTS.get(str(config.get("model_type")), {})
    prompts = {str(name): str(text) for name, text in (told.get("prompts") or known).items()}
    prompts_are_guessed = prompts == known != {}
    max_tokens = _read(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    modules = _read(folder / MODULES, [])
    pooling: Pooling | None = None
    counts_prompt, normalizes, is_guessed, dense = True, False, False, []
    for module in modules:
        kind, path = str(module.get("type")).rpartition(".")[2], folder / str(module.get("path"))
        given = _read(path / "config.json", {})
        if kind == "Pooling":
            pooling, counts_prompt = _pooling_of(given, path), bool(given.get("include_prompt", True))
        elif kind == "Dense":
            activation = str(given.get("activation_function", "Identity")).rpartition(".")[2]
            dense.append(Dense(path, bool(given.get("bias", True)), activation))
        elif kind == "Normalize":
            normalizes = True
        elif kind == LOGIT_SCORE:
            answers = given.get("true_token_id"), given.get("false_token_id")
            return Recipe("last", max_tokens=max_tokens, answers=answers)
        elif kind != "Transformer":
            raise ModelError(f"{folder / MODULES} names {kind}, which is not known here")
    if pooling is None:
        is_guessed = normalizes = True
        pooling = "mean" if config.get("model_type") in (*ENCODERS, GEMMA) else "last"
        if config.get("model_type") == GEMMA:
            # Conversions keep its two dense layers with the other weights.
            dense = [Dense(folder, has_bias=False, name=f"dense.{index}") for index in range(2)]
    return Recipe(
        pooling,
        counts_prompt,
        tuple(dense),
        normalizes,
        prompts,
        told.get("default_prompt_name"),
        max_tokens,
        is_guessed,
        prompts_are_guessed,
    )


def find_vectors(folder: Path, config: dict[str, Any]) -> EmbeddingInfo:
    """Describe a model's vectors before it is loaded, so without its special tokens. Raises ModelError."""
    recipe = read_recipe(folder, config)
    last = _read(recipe.dense[-1].folder / "config.json", {}) if recipe.dense else {}
    return EmbeddingInfo(int(last.get("out_features", config.get("hidden_size") or config["n_embd"])), recipe)


def find_first_position(config: dict[str, Any]) -> int:
    """Return the position of an encoder's first token: RoBERTa's positions begin after the padding id."""
    is_learned = config.get("position_embedding_type", "absolute") == "absolute"
    is_after = config.get("model_type") in ROBERTAS and is_learned
    return int(config.get("pad_token_id", 1)) + 1 if is_after else 0


def find_longest(config: dict[str, Any], recipe: Recipe) -> int | None:
    """Return the maximum tokens of a text, special tokens included; None if no file gives a limit."""
    found = find_context_tokens(config)
    if found:
        found -= find_first_position(config)
    return min((limit for limit in (found, recipe.max_tokens) if limit), default=None)


def _pooling_of(given: dict[str, Any], path: Path) -> Pooling:
    modes = [mode for flag, mode in _OLD_POOLINGS.items() if given.get(flag)]
    if (named := given.get("pooling_mode")) in _NEW_POOLINGS:
        modes = [_NEW_POOLINGS[named]]
    unknown = [flag for flag, is_on in given.items() if flag.startswith("pooling_mode_") and is_on is True]
    if len(modes) != 1 or {*unknown} - {*_OLD_POOLINGS}:
        raise ModelError(f"{path} pools in a way that is not known here: {given}")
    return modes[0]


def _read(file: Path, otherwise: Any) -> Any:
    """Return a JSON file's value, or `otherwise` without the file. Raises ModelError if it cannot be read."""
    try:
        found = read_json(file)
    except FileNotFoundError:
        return otherwise
    except (OSError, ValueError) as fault:
        raise ModelError(f"{file} cannot be read: {fault}") from fault
    if not isinstance(found, type(otherwise)):
        raise ModelError(f"{file} is not what sentence-transformers writes")
    return found
