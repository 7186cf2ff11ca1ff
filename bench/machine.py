"""Describe the machine of a measurement, without host names or anything else that identifies its owner."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

Machine = dict[str, str | int | float | None]


def describe_machine() -> Machine:
    """Return processor, cores, memory, system, versions, and the current load."""
    return {
        "cpu": _cpu_model(), "cores": _num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{_system()} {platform.machine()}", "python": platform.python_version(),
        "reprise": _version("reprise"), "mlx": _version("mlx"), "mlx_lm": _version("mlx-lm"),
        "load_at_start": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def _cpu_model() -> str:
    if sys.platform == "darwin":
        return _output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _num_cores() -> int | None:
    # The cores that this process may use; in a container often fewer than the machine has.
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _output(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
