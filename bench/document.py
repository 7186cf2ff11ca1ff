"""Result documents: JSON files in which each command writes its section, and from which the page is drawn.

{"reprise": version, "date": ISO, "machine": ..., "model": ..., "command": "reprise bench ...",
"cost_curve": [{"width": 1, "seconds": ...}, ...], and "decode", "sweep", "economics", "translation", "peers",
"serve", "replay" or "verify"}
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
from engine.speculative.costs.step_costs import StepCosts

Document = dict[str, Any]

SECTIONS = ("decode", "sweep", "economics", "translation", "peers", "serve", "replay", "verify")
"""The names of the sections; each command writes one."""


def new_document(
    command: str | argparse.Namespace,
    model: ModelInfo | None = None,
    costs: StepCosts | None = None,
    **sections: Any,
) -> Document:
    """Build a document dated now, with a description of this machine.

    command: the command line, or the arguments parsed from it. model, costs: of the engine, if one ran.
    sections: by name.
    Raises ValueError for a section that is not in SECTIONS.
    """
    if unknown := sections.keys() - set(SECTIONS):
        raise ValueError(
            f"{', '.join(sorted(unknown))}: unknown section; the sections are {', '.join(SECTIONS)}"
        )
    return {
        "reprise": version("reprise"), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(), "model": describe_model(model) if model else None,
        "command": command if isinstance(command, str) else command_line(command),
        "cost_curve": cost_curve(costs) if costs else [], **sections,
    }  # fmt: skip


def command_line(arguments: argparse.Namespace) -> str:
    """Return the command line as the user typed it: "reprise bench decode --json ..."."""
    return shlex.join(["reprise", *getattr(arguments, "given", ())])


def describe_model(info: ModelInfo) -> dict[str, Any]:
    """Return what the page and the tables show of a model; no paths."""
    facts = asdict(info)
    kept = (
        "name architecture context_tokens vocab_size num_layers num_parameters weight_bytes dtype device "
        "fingerprint"
    )
    return {name: facts[name] for name in kept.split()}


def cost_curve(costs: StepCosts) -> list[dict[str, float]]:
    """Return the seconds of a one-row step for each width, as the engine estimates them now."""
    return [{"width": width, "seconds": costs.seconds(1, width)} for width in costs.widths]


def write(path: Path, document: Document) -> None:
    """Write a document atomically. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Document:
    """Read a document. Raises OSError if it cannot be read, ValueError if it is not a result document."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise ValueError(f"{path} is not JSON: {fault}") from None
    if not isinstance(document, dict) or not any(name in document for name in SECTIONS):
        raise ValueError(f"{path} is not a result document: it has none of {', '.join(SECTIONS)}")
    return document
