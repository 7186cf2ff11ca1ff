"""The device that MLX computes on: its name, its memory, and what is fast on it."""

import os
from pathlib import Path

import mlx.core as mx

from reprise.engine.interface.errors import ModelError

DEVICE_SHARE = 0.9
"""Share of a GPU's recommended working set, or of its memory."""

HOST_SHARE = 0.75
"""Share of the machine's memory; the rest is for the process itself and for other programs."""

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def device_name() -> str:
    """Return the name of the device that computes, such as "Apple M4 Pro (Metal)" or "CPU"."""
    if mx.metal.is_available():
        return f"{mx.device_info()['device_name']} (Metal)"
    if mx.default_device().type == mx.DeviceType.gpu:
        return "CUDA GPU"
    return "CPU"


def device_memory_bytes() -> int:
    """Return the bytes of memory that models and caches can use, as the system reports them."""
    if mx.metal.is_available():
        return int(mx.device_info()["memory_size"])
    return host_bytes()


def quantised_steps_gain() -> bool:
    """Whether a step of several tokens with quantised weights takes less time than as many steps of one."""
    return mx.default_device().type != mx.DeviceType.cpu


def usable_bytes() -> int:
    """Return the bytes to use by default: a share of the GPU's memory, or else of the machine's."""
    if mx.default_device().type == mx.DeviceType.gpu:
        known = mx.device_info()
        for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
            if name in known:
                return int(DEVICE_SHARE * int(known[name]))
    return int(HOST_SHARE * min(host_bytes(), _container_bytes()))


def working_set_bytes() -> int | None:
    """Return the bytes that the system recommends Metal to use at most; None without Metal."""
    return int(mx.device_info()["max_recommended_working_set_size"]) if mx.metal.is_available() else None


def wire_weights() -> None:
    """Make Metal keep all arrays that exist now, which are the weights, resident until the process ends.

    Later arrays are not wired. mlx-lm wires everything, up to what the GPU recommends; with that much, caches
    that grow have been reported to crash macOS (mlx-lm issues 883 and 1666, mlx issue 3186).
    Raises ModelError if there is no Metal, or the system does not let that much be wired.
    """
    limit = working_set_bytes()
    if limit is None:
        raise ModelError("--wire-weights has an effect with Metal only, on a Mac: start without it")
    # Buffers in MLX's cache would be wired too.
    mx.clear_cache()
    num_bytes = mx.get_active_memory()
    if num_bytes > limit:
        raise ModelError(
            f"--wire-weights: the weights take {num_bytes / 2**20:,.0f} MiB, and this Mac wires at most "
            f"{limit / 2**20:,.0f} MiB: start without it, or raise the limit with "
            f"sudo sysctl iogpu.wired_limit_mb={-(-num_bytes // 2**20)}"
        )
    mx.set_wired_limit(num_bytes)


def host_bytes() -> int:
    """Return the bytes of the machine's memory, whatever limit a container has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_bytes() -> float:
    for path in CGROUP_LIMITS:
        try:
            return int(Path(path).read_text())
        # There is no such file, or it holds the word "max".
        except (OSError, ValueError):
            continue
    return float("inf")
