"""A result document: one JSON file into which each command writes its section, and which the page draws.

{"reprise": version, "date": ISO, "machine": ..., "model": ..., "command": "reprise bench ...",
"cost_curve": [{"width": 1, "seconds": ...}, ...], and "decode", "sweep", "economics", "translation", "peers"
or "replay"}
"""

import argparse
import json
import os
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.machine import describe_machine
from engine.request import ModelInfo
from engine.speculative.step_costs import StepCosts

Document = dict[str, Any]

SECTIONS = ("decode", "sweep", "economics", "translation", "peers", "replay")
"""The names under which commands keep what they found."""


def new_document(
    command: str, model: ModelInfo | None = None, costs: StepCosts | None = None, **sections: Any
) -> Document:
    """A document of today on this machine.

    command: what was typed; see typed(). model, costs: of the engine, if there was one. sections: by name.
    Raises ValueError for a section that is none of SECTIONS.
    """
    if unknown := sections.keys() - set(SECTIONS):
        raise ValueError(f"{', '.join(sorted(unknown))}: a section is one of {', '.join(SECTIONS)}")
    return {
        "reprise": version("reprise"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "model": describe_model(model) if model else None,
        "command": command,
        "cost_curve": cost_curve(costs) if costs else [],
        **sections,
    }


def typed(arguments: argparse.Namespace) -> str:
    """The command line as it was typed: "reprise bench decode --json ..."."""
    return shlex.join(["reprise", *getattr(arguments, "given", ())])


def describe_model(info: ModelInfo) -> dict[str, Any]:
    """What the page and the tables say about a model; no paths."""
    facts = asdict(info)
    kept = (
        "name architecture context_tokens vocab_size num_layers num_parameters weight_bytes dtype device "
        "fingerprint"
    )
    return {name: facts[name] for name in kept.split()}


def cost_curve(costs: StepCosts) -> list[dict[str, float]]:
    """Seconds of a step of one row by its width, as the engine works with them now."""
    return [{"width": width, "seconds": costs.seconds(1, width)} for width in costs.widths]


def write(path: Path, document: Document) -> None:
    """Write it, whole or not at all. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Document:
    """Read one that write() wrote. Raises OSError, and ValueError with the reason for anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise ValueError(f"{path} is no JSON: {fault}") from None
    if not isinstance(document, dict) or not any(name in document for name in SECTIONS):
        raise ValueError(f"{path} has none of the sections {', '.join(SECTIONS)}")
    return document
