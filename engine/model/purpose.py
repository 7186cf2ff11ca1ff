"""Say by a model's small files what it is for: to generate text, to embed texts, or to rank documents."""

from pathlib import Path
from typing import Any

from engine.interface.embeddings import Purpose

ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})
"""Model types with weights that engine/embedding/encoder.py reads."""

MODULES = "modules.json"
"""File of sentence-transformers that names what follows the model: pooling, dense layers, normalization."""


def find_purpose(folder: Path, config: dict[str, Any]) -> Purpose:
    """Return a model's purpose: to generate, embed or rank. config: of its config.json."""
    architecture = next(iter(config.get("architectures") or ()), "")
    if config.get("model_type") in ENCODERS:
        return "rerank" if str(architecture).endswith("ForSequenceClassification") else "embed"
    return "embed" if (folder / MODULES).is_file() else "generate"
