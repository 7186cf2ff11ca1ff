"""Result documents: JSON files in which each command writes its section, and from which the page is drawn.

{"reprise": version, "date": ISO, "machine": ..., "model": ..., "command": "reprise bench ...",
"cost_curve": [{"width": 1, "seconds": ...}, ...], and one or more of SECTIONS}
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reprise.config.version import VERSION
from reprise.engine.interface.models import ModelInfo
from reprise.engine.speculative.costs.step_costs import StepCosts

Document = dict[str, Any]

SECTIONS = (
    "decode", "sweep", "economics", "translation", "serve", "replay", "verify", "turns", "sampling",
    "wedlm", "embed",
)  # fmt: skip
"""The names of the sections; each command writes one."""

_OF_MODEL = (
    "name", "architecture", "context_tokens", "vocab_size", "num_layers", "num_parameters", "weight_bytes",
    "dtype", "device", "fingerprint",
)  # fmt: skip


def new_document(
    arguments: argparse.Namespace,
    model: ModelInfo | None = None,
    costs: StepCosts | None = None,
    **sections: Any,
) -> Document:
    """Build a result document, dated now.

    model, costs: the engine's, if one ran; the document has the costs of one-row steps.
    """
    plain_s = costs.seconds(1, 1) if costs else 1.0
    taken = {one: costs.seconds(1, one) for one in costs.widths} if costs else {}
    curve = [{"width": one, "seconds": s, "plain_steps": s / plain_s} for one, s in taken.items()]
    return {
        "reprise": VERSION, "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "model": {name: getattr(model, name) for name in _OF_MODEL} if model else None,
        "command": shlex.join(["reprise", *getattr(arguments, "given", ())]), "cost_curve": curve, **sections,
    }  # fmt: skip


def write(path: Path, document: Document) -> None:
    """Write a document atomically. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Document:
    """Read a document. Raises OSError, and ValueError if it is not a result document."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise ValueError(f"{path} is not JSON: {fault}") from None
    if not isinstance(document, dict) or not any(name in document for name in SECTIONS):
        raise ValueError(f"{path} is not a result document: it has none of {', '.join(SECTIONS)}")
    return document


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, system, versions, and load; nothing that identifies an owner."""
    if sys.platform == "darwin":
        cores = os.cpu_count()
        asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        system = f"macOS {platform.mac_ver()[0]}"
    else:
        # In a container, often fewer than the machine has.
        cores = len(os.sched_getaffinity(0))
        named = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu, system = named[1] if named else "", platform.freedesktop_os_release()["PRETTY_NAME"]
    return {
        "cpu": cpu or platform.machine(), "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{system} {platform.machine()}", "python": platform.python_version(),
        "reprise": VERSION, "mlx": version("mlx"), "mlx_lm": version("mlx-lm"),
        "load_at_start": round(os.getloadavg()[0], 2),
    }  # fmt: skip
