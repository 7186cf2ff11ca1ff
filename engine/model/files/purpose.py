"""Tell by a model's small files its purpose: to generate text, to embed texts, or to rank documents."""

from pathlib import Path
from typing import Any

from reprise.engine.interface.embeddings import Purpose
from reprise.engine.model.files.folder_reader import read_bytes

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
