"""Check what can be known without MLX: Python, memory, disk and port."""

import platform
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from reprise.cli.checks.check import Check, Level
from reprise.cli.units import format_bytes
from reprise.config.settings import Settings

NEWEST_PYTHON = (3, 14)
LOW_DISK_BYTES, NO_DISK_BYTES = 10 << 30, 1 << 30


def check_python() -> Check:
    """Check Python's version, and on a Mac that this Python is built for Apple Silicon."""
    found = f"{platform.python_version()} ({platform.machine()})"
    if sys.platform == "darwin" and platform.machine() != "arm64":
        advice = "MLX needs Python for Apple Silicon; this one runs under Rosetta, or on an Intel Mac"
        return Check("Python", "problem", found, advice)
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return Check("Python", "warning", found, f"Reprise is tested with versions up to {newest}")
    return Check("Python", "ok", found)


def check_packages() -> Check:
    """Check that MLX and mlx-lm are installed, and that there is only one build of MLX."""
    found = {name: _version(name) for name in ("mlx", "mlx-lm", "mlx-cpu", "mlx-cuda-13")}
    shown = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    if not found["mlx"] or not found["mlx-lm"]:
        return Check("packages", "problem", shown or "no MLX", "install Reprise again (docs/install.md)")
    if found["mlx-cpu"] and found["mlx-cuda-13"]:
        advice = "both builds have the same library: uninstall mlx-cpu, and install mlx-cuda-13 again"
        return Check("packages", "problem", shown, advice)
    return Check("packages", "ok", shown)


def check_memory(usable_bytes: int, weight_bytes: int | None) -> Check:
    """Check that the weights fit into the memory that models and caches may use, and into free memory.

    weight_bytes: size of the weights of all models that will be loaded; None if unknown.
    """
    memory = psutil.virtual_memory()
    found = (
        f"{format_bytes(memory.total)}, {format_bytes(memory.available)} of it free; "
        f"models and caches may use {format_bytes(usable_bytes)}"
    )
    weights = weight_bytes or 0
    if weights > usable_bytes:
        advice = f"the weights take {format_bytes(weights)}: choose a smaller or a quantized model"
        return Check("memory", "problem", found, advice)
    if weights > memory.available:
        advice = f"the weights take {format_bytes(weights)}: end other programs, or expect swapping"
        return Check("memory", "warning", found, advice)
    return Check("memory", "ok", found)


def check_wired_limit(working_set_bytes: int | None, weight_bytes: int | None) -> Check:
    """Check that the weights fit into the memory that macOS lets Metal keep resident.

    working_set_bytes: size of that memory; None without Metal. weight_bytes: None if unknown.
    """
    if working_set_bytes is None:
        return Check("wired limit", "ok", "none without Metal")
    found = f"{format_bytes(working_set_bytes)} may stay resident for Metal"
    if weight_bytes and weight_bytes > working_set_bytes:
        megabytes = -(-weight_bytes // 2**20) + 1024
        advice = f"raise it with sudo sysctl iogpu.wired_limit_mb={megabytes}, or choose a smaller model"
        return Check("wired limit", "problem", found, advice)
    return Check("wired limit", "ok", found)


def check_disk(folder: Path, use: str) -> Check:
    """Check that a folder, which may be missing, has free space and can be written to. use: its purpose."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        free = shutil.disk_usage(existing).free
        probe = existing / f".reprise-{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as fault:
        return Check(f"disk for {use}", "problem", f"{existing}: {fault.strerror}", "make it writable")
    found = f"{format_bytes(free)} free in {existing}"
    if free < NO_DISK_BYTES:
        return Check(f"disk for {use}", "problem", found, "free some space (`reprise list`, `reprise rm`)")
    if free < LOW_DISK_BYTES:
        return Check(f"disk for {use}", "warning", found, "few models fit; `reprise list` shows what is here")
    return Check(f"disk for {use}", "ok", found)


def check_port(settings: Settings) -> Check:
    """Check that the server could listen at its address, and would not be open to others without a key."""
    # Imported here: it loads the server.
    from reprise.server.run import ListenError, bind_address, explain, exposure_error

    place = f"{settings.host} port {settings.port}"
    try:
        with bind_address(settings.host, settings.port) as bound:
            fault = exposure_error(settings, bound)
    except ListenError as error:
        found, _, advice = explain(error, settings).partition(". ")
        level: Level = "problem" if "another program" in found or not advice else "warning"
        return Check("address", level, found, advice)
    return Check("address", "problem", fault) if fault else Check("address", "ok", f"{place} is free")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
