"""Energy counters of the machine: RAPL on Linux, powermetrics on macOS, NVML for NVIDIA GPUs.

They count the energy of whole components, so other work and idle power are included.
Where counters cannot be read, nothing is estimated: EnergyMeter.read() returns None and EnergyMeter.reason
says why.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from bench.nvml import NvmlCounter
from bench.powermetrics import PowerMetrics

POWERCAP = Path("/sys/class/powercap")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_MICRO = 1e-6


class EnergyCounter(Protocol):
    """A component of the machine that counts its energy. what: the component, in words."""

    what: str

    def joules(self) -> float:
        """Return the joules since some fixed start; never falls. Raises OSError once it cannot be read."""

    def close(self) -> None:
        """Release the counter."""


class RaplZone:
    """One RAPL counter, as Linux shows it. It wraps to 0 at the end of its range.

    Raises OSError if it cannot be read: on most systems only root can.
    At most one wrap can be detected between two calls, so call at least once per range, which lasts a minute
    or more at full power.
    """

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = self._read_uj()
        self._total_uj = 0
        self.what = (folder / "name").read_text().strip()

    def joules(self) -> float:
        """Return the joules since this object was made. Raises OSError."""
        now_uj = self._read_uj()
        step_uj = now_uj - self._last_uj
        self._total_uj += step_uj if step_uj >= 0 else step_uj + self._range_uj
        self._last_uj = now_uj
        return self._total_uj * _MICRO

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _read_uj(self) -> int:
        return int(self._counter.read_text())


def rapl_zones(powercap: Path = POWERCAP) -> list[Path]:
    """Return the folders of all processor packages and of memory; their sum counts nothing twice.

    Cores and graphics are part of their package; "psys" is the whole board and contains all of these.
    """
    found = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text().strip()
        except OSError:
            continue
        if name.startswith("package") or name == "dram":
            found.append(folder)
    return found


class EnergyMeter:
    """Adds up the energy counters of this machine.

    source: what is counted, in words; None if nothing is. reason: why nothing is counted.
    counters: used instead of this machine's.
    """

    def __init__(self, counters: Sequence[EnergyCounter] | None = None) -> None:
        self.source: str | None = None
        self.reason: str | None = None
        faults: list[str] = []
        self._counters = _machine_counters(faults) if counters is None else list(counters)
        if self._counters:
            self.source = ", ".join(counter.what for counter in self._counters)
            if faults:
                self.source += f"; not included: {'; '.join(faults)}"
        else:
            self.reason = "; ".join(faults) or "this machine has no energy counters"

    def read(self) -> float | None:
        """Return joules since some fixed start, to be subtracted from a later reading; None if unmeasured."""
        if not self._counters:
            return None
        try:
            return sum(counter.joules() for counter in self._counters)
        except (OSError, ValueError) as fault:
            # A sum that suddenly lacks a component would be a wrong figure.
            self.close()
            self.source, self.reason = None, f"an energy counter stopped working: {fault}"
            return None

    def close(self) -> None:
        """Release the counters; from now on nothing is measured."""
        for counter in self._counters:
            counter.close()
        self._counters = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _machine_counters(faults: list[str]) -> list[EnergyCounter]:
    """Return every counter that can be read here, and add to faults those that cannot."""
    if sys.platform == "darwin":
        return _open_counters([PowerMetrics], "powermetrics", faults)
    zones = rapl_zones()
    found = _open_counters([partial(RaplZone, zone) for zone in zones], "RAPL", faults)
    if not zones and sys.platform == "linux":
        faults.append("no RAPL counters under /sys/class/powercap")
    if len(found) < len(zones):
        found = []
    if NVIDIA_DRIVER.exists():
        found += _open_counters([NvmlCounter], "NVML", faults)
    return found


def _open_counters(
    makers: Sequence[Callable[[], EnergyCounter]], what: str, faults: list[str]
) -> list[EnergyCounter]:
    found: list[EnergyCounter] = []
    for make in makers:
        try:
            found.append(make())
        except PermissionError:
            root = "" if os.geteuid() == 0 else " (needs root)"
            faults.append(f"no permission to read {what}{root}")
            break
        except (OSError, ValueError) as fault:
            faults.append(f"{what}: {fault}")
            break
    return found
