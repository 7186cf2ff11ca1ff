"""Energy counters of the machine: RAPL on Linux, powermetrics on macOS.

They count the energy of whole components, so other work and idle power are included.
Where counters cannot be read, nothing is estimated: EnergyMeter.read() returns None and EnergyMeter.reason
says why.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Self

POWERCAP = Path("/sys/class/powercap")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
INTERVAL_MS = 200
FIRST_SAMPLE_S, _END_S = 5.0, 5.0
COMMAND = ("/usr/bin/powermetrics", "--samplers", "cpu_power,gpu_power", "-i", str(INTERVAL_MS), "-b", "1")

_ELAPSED = re.compile(r"^\*\*\* Sampled system activity .*\(([\d.]+)ms elapsed\) \*\*\*$")
_POWER = re.compile(r"^Combined Power \([^)]*\): ([\d.]+) mW$")


class EnergyCounter:
    """A component of the machine that counts its energy. what: the component, in words."""

    what: str

    def joules(self) -> float:
        """Return the joules since some fixed start; never falls. Raises OSError once it cannot be read."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the counter."""


class RaplZone(EnergyCounter):
    """One RAPL counter, as Linux shows it; on most systems only root can read it. Raises OSError.

    It wraps to 0 at the end of its range. At most one wrap can be detected between two calls, so call at
    least once per range, which lasts a minute or more at full power.
    """

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj, self._total_uj = int(self._counter.read_text()), 0
        self.what = (folder / "name").read_text().strip()

    def joules(self) -> float:
        """Return the joules since this object was made. Raises OSError."""
        now_uj = int(self._counter.read_text())
        self._total_uj += (now_uj - self._last_uj) % self._range_uj
        self._last_uj = now_uj
        return self._total_uj * 1e-6


def rapl_zones(powercap: Path = POWERCAP) -> list[Path]:
    """Return the folders of all processor packages and of memory; their sum counts nothing twice.

    Cores and graphics are part of their package; "psys" is the whole board and contains all of these.
    """
    found = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        with suppress(OSError):
            name = (folder / "name").read_text().strip()
            found += [folder] if name.startswith("package") or name == "dram" else []
    return found


def read_samples(lines: Iterable[str]) -> Iterator[float]:
    """Yield the joules of each sample: power of CPU, GPU and ANE, times the duration of the sample."""
    elapsed_ms: float | None = None
    for line in lines:
        if found := _ELAPSED.match(line.strip()):
            elapsed_ms = float(found[1])
        elif (found := _POWER.match(line.strip())) and elapsed_ms is not None:
            yield float(found[1]) * elapsed_ms * 1e-6
            # The GPU section repeats some figures; each sample has one combined power.
            elapsed_ms = None


class PowerMetrics(EnergyCounter):
    """macOS' powermetrics, running until the meter is closed.

    Its output lags by up to one interval, so measure over several seconds.
    Raises PermissionError if it may not run, OSError if it is missing or prints nothing.
    """

    what = "CPU, GPU and ANE"

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        prefix = () if os.geteuid() == 0 else ("/usr/bin/sudo", "-n")
        self._process = subprocess.Popen(
            [*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self._joules = 0.0
        self._has_output = threading.Event()
        self._is_closing = False
        output = self._process.stdout
        assert output is not None, "stdout is a pipe"
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()
        is_over = self._has_output.wait(FIRST_SAMPLE_S) and not self._joules
        if not self._joules:
            self.close()
            raise PermissionError if is_over else OSError("powermetrics printed nothing")

    def joules(self) -> float:
        """Return the joules since the start. Raises OSError if powermetrics has ended."""
        if self._process.poll() is not None:
            raise OSError("powermetrics has ended")
        return self._joules

    def close(self) -> None:
        """Stop the process."""
        self._is_closing = True
        # A process started by sudo may refuse signals; it ends when its output is no longer read.
        with suppress(PermissionError):
            self._process.terminate()
        self._reader.join(_END_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _read(self, output: IO[str]) -> None:
        with output:
            for joules in read_samples(output):
                self._joules += joules
                self._has_output.set()
                if self._is_closing:
                    break
        self._has_output.set()


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
            left_out = f"; not included: {'; '.join(faults)}" if faults else ""
            self.source = ", ".join(counter.what for counter in self._counters) + left_out
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

    def __exit__(self, *_: object) -> None:
        self.close()


def _machine_counters(faults: list[str]) -> list[EnergyCounter]:
    """Return the counters that can be read here, and add to faults what cannot be counted."""
    name, makers = "", list[Callable[[], EnergyCounter]]()
    if sys.platform == "darwin":
        name, makers = "powermetrics", [PowerMetrics]
    elif sys.platform == "linux":
        name, makers = "RAPL", [partial(RaplZone, zone) for zone in rapl_zones()]
        if not makers:
            faults.append("no RAPL counters under /sys/class/powercap")
    if NVIDIA_DRIVER.exists():
        faults.append("NVIDIA GPUs")
    try:
        # All or none: a sum without one of the processors would be a wrong figure.
        return [make() for make in makers]
    except PermissionError:
        faults.append(f"no permission to read {name}" + ("" if os.geteuid() == 0 else " (needs root)"))
    except (OSError, ValueError) as fault:
        faults.append(f"{name}: {fault}")
    return []
