"""Memory pressure: other programs lack memory, and cached prefixes are given back to them.

the watchdog's thread looks once a second -> the engine's thread responds between two steps
"""

import ctypes
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Literal, get_args

import mlx.core as mx

from reprise.engine.memory.budget import Holder, MemoryBudget

log = logging.getLogger("reprise.engine")

Level = Literal["none", "warning", "critical"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From low to high."""

MAX_LOOKS = 60
"""Looks, one a second, for which a level has an effect: what others lack after that, this cannot give.
Without it, requests would run one by one for as long as the pressure lasts."""

STALLED_PERCENT = 10.0
"""Linux: share of the last ten seconds in which some programs (warning), or all (critical), waited for
memory."""

PSI_FILE = Path("/proc/pressure/memory")
_SYSCTL, _DISPATCH_LEVELS = b"kern.memorystatus_vm_pressure_level", {2: LEVELS[1], 4: LEVELS[2]}
"""Its values are those of DISPATCH_MEMORYPRESSURE_NORMAL (1), WARN and CRITICAL in libdispatch."""


def read_level() -> Level:
    """Return the system's memory pressure; none if it does not tell, or if the GPU has memory of its own."""
    if sys.platform == "darwin":
        value, size = ctypes.c_uint32(), ctypes.c_size_t(4)
        fault = ctypes.CDLL(None).sysctlbyname(
            _SYSCTL, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        return "none" if fault else _DISPATCH_LEVELS.get(value.value, "none")
    if mx.default_device().type == mx.DeviceType.gpu:
        return "none"
    shares = {"some": 0.0, "full": 0.0}
    # Kernels without pressure stall information have no such file, or one that cannot be read.
    with suppress(OSError, ValueError, IndexError):
        for line in PSI_FILE.read_text(encoding="ascii").splitlines():
            # some avg10=0.00 avg60=0.00 avg300=0.00 total=0
            kind, last_10_s, *_ = line.split()
            shares[kind] = float(last_10_s.removeprefix("avg10="))
    if shares["full"] >= STALLED_PERCENT:
        return "critical"
    return "warning" if shares["some"] >= STALLED_PERCENT else "none"


class MemoryPressure:
    """Gives cached prefixes back while the system lacks memory.

    At each look with a level of warning, half of their bytes are given back, and at critical all, besides
    MLX's free buffers. Meanwhile new requests wait until nothing runs: the oldest always goes on.

    wake: wakes the engine's thread. read: returns the level; read_level() unless it is replaced.
    level: as last read. given_back_bytes: since the start. Any thread may read both.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.read: Callable[[], Level] = read_level
        self.level: Level = "none"
        self.given_back_bytes = 0
        self._wake = wake
        self._num_looks = self._num_answered = 0
        # While pressure lasts: its highest level, how many looks still have an effect, the bytes before.
        self._worst, self._num_left, self._given_before = 0, 0, 0

    def look(self) -> None:
        """Read the level, and wake the engine's thread if it has to respond. Any thread."""
        before, self.level = self.level, self.read()
        if self.level != before or self.level != "none":
            self._num_looks += 1
            self._wake()

    @property
    def is_pending(self) -> bool:
        """Whether respond() has not been called since the last look that needs it."""
        return self._num_looks != self._num_answered

    def respond(self, holders: Sequence[Holder]) -> None:
        """Give memory back, or end that. On the engine's thread, between two steps.

        holders: the loaded models, the first to give up prefixes first.
        """
        self._num_answered = self._num_looks
        level, had_effect = LEVELS.index(self.level), self._num_left > 0
        if level > self._worst:
            self._worst, self._num_left = level, MAX_LOOKS
        elif not level:
            self._worst = self._num_left = 0
        if self._num_left:
            if not had_effect:
                self._given_before = self.given_back_bytes
            self.given_back_bytes += _give_back(holders, 1.0 if self.level == "critical" else 0.5)
            self._num_left -= 1
        for holder in holders:
            if isinstance(holder, MemoryBudget):
                holder.lacks_memory, holder.is_tight = level > 0, self._num_left > 0
        given = (self.given_back_bytes - self._given_before) / 2**20
        if self._num_left and not had_effect:
            message = "memory pressure (%s): %.1f MiB given back; new requests wait while others run"
            log.warning(message, self.level, given)
        elif had_effect and not self._num_left:
            what = f"lasts after {MAX_LOOKS} s" if level else "is over"
            log.warning("memory pressure %s: %.1f MiB given back; new requests begin as usual", what, given)


def _give_back(holders: Sequence[Holder], share: float) -> int:
    """Drop a share of all cached prefixes, and MLX's free buffers; return the bytes."""
    num_bytes = mx.get_cache_memory()
    # Rounded up, so that the last one goes too.
    left = ceil(share * sum(holder.prefix_bytes for holder in holders))
    for holder in holders:
        if left > 0:
            given = holder.give_up(left)
            left, num_bytes = left - given, num_bytes + given
    # Dropped prefixes become free buffers.
    mx.clear_cache()
    return num_bytes
