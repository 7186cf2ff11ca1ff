"""The models as Ollama's clients list them."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from reprise.engine.interface.models import ModelEntry
from reprise.server.ollama_api.presenter import written
from reprise.server.ollama_api.to_chat import tagged

OLLAMA_VERSION = "0.32.15"
"""The version of Ollama whose API this is; clients refuse older ones than they know."""
FOREVER = "9999-12-31T23:59:59Z"


def listed_model(name: str, entry: ModelEntry, created: int) -> dict[str, Any]:
    """Return a model for /api/tags. created: when the server started, in seconds of Unix time."""
    return {
        **_named(name, entry),
        "modified_at": written(datetime.fromtimestamp(created, UTC)),
        "capabilities": _capabilities(entry),
    }


def running_model(name: str, entry: ModelEntry) -> dict[str, Any]:
    """Return a loaded model for /api/ps."""
    left_s = entry.idle_left_s
    return {
        **_named(name, entry),
        "expires_at": FOREVER if left_s is None else written(datetime.now(UTC) + timedelta(seconds=left_s)),
        "size_vram": entry.size_bytes,
        "context_length": entry.context_tokens or 0,
    }


def described_model(entry: ModelEntry, sampling: dict[str, float], created: int) -> dict[str, Any]:
    """Return a model for /api/show.

    sampling: the sampling of requests whose fields are absent.
    created: when the server started, in seconds of Unix time.
    """
    context = {"num_ctx": str(entry.context_tokens)} if entry.context_tokens else {}
    parameters = context | {name: f"{value:g}" for name, value in sampling.items()}
    return {
        "license": "",
        "modelfile": "",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        # Continue takes this word for a sign that the model fills in.
        "template": "{{ .Prompt }}{{ .Suffix }}" if entry.can_infill else "{{ .Prompt }}",
        "details": _details(entry),
        "model_info": _facts(entry),
        "capabilities": _capabilities(entry),
        "modified_at": written(datetime.fromtimestamp(created, UTC)),
    }


def _named(name: str, entry: ModelEntry) -> dict[str, Any]:
    # Ollama's own client shows a part of it; nothing here is looked up by it.
    digest = hashlib.sha256(f"{entry.name} {entry.size_bytes}".encode()).hexdigest()
    known = {"name": tagged(name), "model": tagged(name), "size": entry.size_bytes, "digest": digest}
    return {**known, "details": _details(entry)}


def _details(entry: ModelEntry) -> dict[str, Any]:
    """Return a model's details, such as family and size: fewer before it is loaded."""
    info = entry.info
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": info.architecture if info else "",
        "families": [info.architecture] if info else [],
        "parameter_size": _size(info.num_parameters) if info else "",
        "quantization_level": info.dtype if info else "",
    }


def _facts(entry: ModelEntry) -> dict[str, Any]:
    info = entry.info
    kind = info.architecture if info else "unknown"
    facts: dict[str, Any] = {"general.architecture": kind}
    if entry.context_tokens:
        facts[f"{kind}.context_length"] = entry.context_tokens
    if entry.embedding:
        facts[f"{kind}.embedding_length"] = entry.embedding.dimensions
    if info:
        facts["general.parameter_count"] = info.num_parameters
        facts |= {f"{kind}.block_count": info.num_layers, f"{kind}.vocab_size": info.vocab_size}
    return facts


def _capabilities(entry: ModelEntry) -> list[str]:
    if entry.purpose != "generate":
        return ["embedding"] if entry.purpose == "embed" else []
    known = {
        "tools": entry.can_call,
        "thinking": entry.can_think,
        "insert": entry.can_infill,
        "vision": entry.vision is not None,
    }
    return ["completion", *(name for name, can in known.items() if can)]


def _size(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
