"""Read the settings that a model's makers recommend for its answers, from its generation_config.json."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reprise.engine.interface.models import AnswerLimits, SamplingDefaults
from reprise.engine.model.files.folder_reader import read_json

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
    """Return the sampling settings in a model folder's generation_config.json; none without that file.

    Values that a request could not have are left out, and logged.
    """
    return SamplingDefaults(**_read(folder, _RANGES))


def read_answer_limits(folder: Path) -> AnswerLimits:
    """Return the limits of answers in a model folder's generation_config.json; none without that file."""
    found = _read(folder, _LIMITS)
    return AnswerLimits(found.get("max_new_tokens"), found.get("loop_guard_tokens"))


def _read(folder: Path, ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    try:
        given = read_json(folder / "generation_config.json")
    except (OSError, ValueError):
        return {}
    found: dict[str, Any] = {}
    for name, (low, high) in ranges.items():
        value = given.get(name) if isinstance(given, dict) else None
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            log.warning("generation_config.json has %s %r, which is left out", name, value)
        else:
            found[name] = int(value) if name in _WHOLE else float(value)
    return found
