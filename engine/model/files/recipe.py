"""Read from a model's folder how its hidden states become a vector: pooling, dense layers, prompts.

The files are those of sentence-transformers. The architecture decides whatever they leave out.
"""

from pathlib import Path
from typing import Any

from reprise.engine.interface.embeddings import Dense, EmbeddingInfo, Pooling, Purpose, Recipe
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.folder_reader import read_bytes, read_json

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
        # What attends to later tokens generates nothing.
        sees_later = config.get("use_bidirectional_attention") or config.get("is_causal") is False
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


def find_context_tokens(config: dict[str, Any]) -> int | None:
    """Return the longest sequence the model was made for; None if no usual configuration key names it.

    It is at most 2**31 - 1. Raises ValueError for a value that is no number.
    """
    for part in (config.get("text_config") or {}, config):
        for key in CONTEXT_KEYS:
            if part.get(key):
                return min(int(part[key]), 2**31 - 1)
    return None


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
    """Read a model's recipe. config: config.json. Raises ModelError for unknown poolings or modules."""
    told = _read(folder / "config_sentence_transformers.json", {})
    known = _PROMPTS.get(str(config.get("model_type")), {})
    prompts = {str(name): str(text) for name, text in (told.get("prompts") or known).items()}
    prompts_are_guessed = prompts == known != {}
    default = told.get("default_prompt_name")
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
        default,
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
