"""Reprise: an inference server for MLX, and its models in Python.

The packages in here are the folders at the repository's root, by links.
"""

from typing import TYPE_CHECKING, Any

from reprise.config.version import VERSION

if TYPE_CHECKING:
    from reprise.config.errors import RepriseError
    from reprise.llm import LLM, Completion, Delta, Logprob, SamplingParams, Stream, ToolCall

__version__ = VERSION
__all__ = ["LLM", "Completion", "Delta", "Logprob", "RepriseError", "SamplingParams", "Stream", "ToolCall"]


def __getattr__(name: str) -> Any:
    """Import the classes at their first use: `reprise --help` must stay quick."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = "reprise.config.errors" if name == "RepriseError" else "reprise.llm"
    return getattr(importlib.import_module(home), name)
