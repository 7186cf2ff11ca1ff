"""How much memory models and caches may take if nobody says."""

import os
from pathlib import Path

import mlx.core as mx

DEVICE_SHARE = 0.9
"""Of what a GPU says is recommended, or has."""

HOST_SHARE = 0.75
"""Of a machine's memory: the rest is for the process itself, and for others."""

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_bytes() -> int:
    """A share of what the GPU recommends or has; without one, of the machine's or the container's memory."""
    if mx.default_device().type == mx.DeviceType.gpu:
        known = mx.device_info()
        for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if name in known:
                return int(DEVICE_SHARE * int(known[name]))
    return int(HOST_SHARE * min(host_bytes(), _container_bytes()))


def host_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_bytes() -> float:
    for path in CGROUP_LIMITS:
        try:
            return int(Path(path).read_text())
        # No such file, or the word "max".
        except (OSError, ValueError):
            continue
    return float("inf")
