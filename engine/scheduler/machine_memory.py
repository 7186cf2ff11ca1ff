"""Find out how much memory models and caches may use by default."""

import os
from pathlib import Path

import mlx.core as mx

DEVICE_SHARE = 0.9
"""Share of a GPU's recommended working set, or of its memory."""

HOST_SHARE = 0.75
"""Share of the machine's memory; the rest is for the process itself and for other programs."""

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_bytes() -> int:
    """Return the default memory: a share of the GPU's or, without one, of the machine's or container's."""
    if mx.default_device().type == mx.DeviceType.gpu:
        known = mx.device_info()
        for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if name in known:
                return int(DEVICE_SHARE * int(known[name]))
    return int(HOST_SHARE * min(host_bytes(), _container_bytes()))


def host_bytes() -> int:
    """Return the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_bytes() -> float:
    for path in CGROUP_LIMITS:
        try:
            return int(Path(path).read_text())
        # There is no such file, or it holds the word "max".
        except (OSError, ValueError):
            continue
    return float("inf")
