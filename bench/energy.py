"""Energy that the machine says it took: RAPL on Linux, powermetrics on macOS, NVML for NVIDIA's GPUs.

All of them count the whole part, whatever ran on it: other work, and what idling takes, is in the figure.
Where nobody may read, nothing is guessed: EnergyMeter.read() is None and EnergyMeter.reason says why.
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
    """A part of the machine that counts its energy. what: the part, in words."""

    what: str

    def joules(self) -> float:
        """Joules since some start; never falls. Raises OSError if it can be read no more."""

    def close(self) -> None:
        """End what reading needed."""


class RaplZone:
    """One counter of RAPL, as Linux shows it; it begins again at 0 when it has reached its range.

    Raises OSError if it may not be read: most systems let only root do so.
    A wrap is seen once between two calls, so there must be one in each range: a minute or more at full power.
    """

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = self._read_uj()
        self._total_uj = 0
        self.what = (folder / "name").read_text().strip()

    def joules(self) -> float:
        """Joules since it was made. Raises OSError."""
        now_uj = self._read_uj()
        step_uj = now_uj - self._last_uj
        self._total_uj += step_uj if step_uj >= 0 else step_uj + self._range_uj
        self._last_uj = now_uj
        return self._total_uj * _MICRO

    def close(self) -> None:
        """Nothing is held."""

    def _read_uj(self) -> int:
        return int(self._counter.read_text())


def rapl_zones(powercap: Path = POWERCAP) -> list[Path]:
    """The folders of all processors and of memory; their sum counts nothing twice.

    Cores and graphics are within their processor; "psys" is the whole board, with all of these in it.
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
    """Adds up what the parts of this machine count.

    source: what is counted, in words; None if nothing is. reason: why nothing is.
    counters: instead of those of this machine.
    """

    def __init__(self, counters: Sequence[EnergyCounter] | None = None) -> None:
        self.source: str | None = None
        self.reason: str | None = None
        faults: list[str] = []
        self._counters = _machine_counters(faults) if counters is None else list(counters)
        if self._counters:
            self.source = ", ".join(counter.what for counter in self._counters)
            if faults:
                self.source += f"; not in it: {'; '.join(faults)}"
        else:
            self.reason = "; ".join(faults) or "this machine tells nobody its power"

    def read(self) -> float | None:
        """Joules since some start; None where they are not measured. Two calls tell what lay between."""
        if not self._counters:
            return None
        try:
            return sum(counter.joules() for counter in self._counters)
        except (OSError, ValueError) as fault:
            # A sum that suddenly misses a part would be a wrong figure.
            self.close()
            self.source, self.reason = None, f"a counter could be read no more: {fault}"
            return None

    def close(self) -> None:
        """End what reading needed; from now on nothing is measured."""
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
    """Every counter that can be read here; what cannot be is named in faults."""
    if sys.platform == "darwin":
        return _tried([PowerMetrics], "powermetrics", faults)
    zones = rapl_zones()
    found = _tried([partial(RaplZone, zone) for zone in zones], "RAPL", faults)
    if not zones and sys.platform == "linux":
        faults.append("no RAPL counters under /sys/class/powercap")
    if len(found) < len(zones):
        found = []
    if NVIDIA_DRIVER.exists():
        found += _tried([NvmlCounter], "NVML", faults)
    return found


def _tried(
    makers: Sequence[Callable[[], EnergyCounter]], what: str, faults: list[str]
) -> list[EnergyCounter]:
    found: list[EnergyCounter] = []
    for make in makers:
        try:
            found.append(make())
        except PermissionError:
            root = "" if os.geteuid() == 0 else ", which only root may"
            faults.append(f"{what} may not be read{root}")
            break
        except (OSError, ValueError) as fault:
            faults.append(f"{what}: {fault}")
            break
    return found
