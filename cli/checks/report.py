"""Collect figures for a bug report: of the machine and of benchmarks, without texts, names or paths."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reprise.bench.document import SECTIONS, describe_machine, read
from reprise.cli.checks.check import Check
from reprise.cli.checks.trial import Answer, Device
from reprise.config.settings import Settings

SHOWN_TEXTS = (
    "architecture", "cpu", "date", "device", "draft_type", "dtype", "mlx", "mlx_lm", "parity", "python",
    "reprise", "system", "workload",
)  # fmt: skip
"""Keys of which the values may be texts; of all others only numbers and truth values are shown."""

MAX_ITEMS = 64
"""Items of a list; longer ones are samples, not summaries."""

_OF_ANSWER = ("num_tokens", "load_s", "tokens_per_s", "is_equal")
_KEY = re.compile(r"\w{1,40}")


def make_report(
    settings: Settings,
    checks: Sequence[Check],
    device: Device | None,
    answer: Answer | None,
    results: Iterable[Path],
) -> dict[str, Any]:
    """Return the figures of a bug report, by name.

    results: paths of result documents of `reprise verify` and `reprise bench`.
    Raises OSError or ValueError if a document cannot be read.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "device": asdict(device) if device else None,
        "checks": {check.name: check.level for check in checks},
        "model": {"source": source_of(settings)} | (summarize(answer.model) if answer else {}),
        "answer": {name: getattr(answer, name) for name in _OF_ANSWER} if answer else None,
        "cost_curve": answer.cost_curve if answer else [],
        "results": [summarize_results(read(path)) for path in results],
    }


def source_of(settings: Settings) -> str:
    """Return the model's name on the hub without its owner's; "bundled" or "a folder" for other models."""
    if settings.model is None:
        return "bundled"
    if Path(settings.model).exists():
        return "a folder"
    return settings.model.rpartition("/")[2]


def summarize_results(document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a result document; see summarize()."""
    kept = {
        name: document[name]
        for name in ("date", "reprise", "machine", "model", *SECTIONS)
        if name in document
    }
    return dict(summarize(kept))


def summarize(found: Any) -> Any:
    """Return a JSON value with only its numbers, truth values, and texts at keys of SHOWN_TEXTS.

    Lists end after MAX_ITEMS items. Other texts become None in a list, and are left out of an object.
    """
    if isinstance(found, dict):
        known = {key: value for key, value in found.items() if _KEY.fullmatch(str(key))}
        return {
            key: value if isinstance(value, str) else summarize(value)
            for key, value in known.items()
            if not isinstance(value, str) or key in SHOWN_TEXTS
        }
    if isinstance(found, list | tuple):
        return [summarize(item) for item in found[:MAX_ITEMS]]
    return found if isinstance(found, bool | int | float) else None


def as_markdown(report: dict[str, Any]) -> str:
    """Return the figures of make_report() as a Markdown block for an issue."""
    return f"```json\n{json.dumps(report, indent=1)}\n```"
