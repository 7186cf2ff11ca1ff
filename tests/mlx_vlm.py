"""A folder with mlx-vlm, which is compared with; it is no dependency."""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PIN = "mlx-vlm==0.7.10"
CACHE = Path.home() / ".cache" / "reprise-tests"
FETCHED_WITHIN_S = 200


@pytest.fixture(scope="session")
def mlx_vlm() -> Path:
    """A folder with mlx-vlm, without the 29 packages that it asks for.

    What is compared needs none of these.
    """
    folder = CACHE / PIN.replace("==", "-")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "mlx-vlm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fetch(folder)
    return folder


def fetch(folder: Path) -> None:
    """Install mlx-vlm into a folder, whole or not at all. Skips the test if it cannot be had."""
    with tempfile.TemporaryDirectory(dir=CACHE) as made:
        place = Path(made)
        # The environment that the tests run in may have no pip.
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        command = [place / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", PIN]
        command += ["--target", place / "packages"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCHED_WITHIN_S, check=False)
        if done.returncode:
            pytest.skip(f"cannot install {PIN}: {done.stderr.strip()[-200:]}")
        (place / "packages").rename(folder)
