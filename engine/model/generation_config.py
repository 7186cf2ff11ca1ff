"""Read the sampling that a model's makers recommend, from its generation_config.json."""

import json
import logging
from pathlib import Path
from typing import Any

from engine.request import SamplingDefaults

log = logging.getLogger("reprise.engine")

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
}


def read_sampling_defaults(folder: Path) -> SamplingDefaults:
    """Return the sampling in a model folder's generation_config.json; none of it if there is no such file.

    Values outside the limits of requests are left out, and logged.
    """
    try:
        given = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return SamplingDefaults()
    found: dict[str, Any] = {}
    for name, (low, high) in _RANGES.items():
        value = given.get(name) if isinstance(given, dict) else None
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            log.warning("generation_config.json has %s %r, which is left out", name, value)
        else:
            found[name] = int(value) if name == "top_k" else float(value)
    return SamplingDefaults(**found)
