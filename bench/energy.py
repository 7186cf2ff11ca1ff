"""Energy counters of the machine: RAPL on Linux, powermetrics on macOS.

They count whole components, so other work and idle power are included. Where they cannot be read, nothing is
estimated. A counter is an iterator: each step gives the joules since its start, or raises OSError.
"""

import os
import re
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import NamedTemporaryFile

Counter = Generator[float, None, None]
POWERCAP = Path("/sys/class/powercap")
COMMAND = ("/usr/bin/powermetrics", "--samplers", "cpu_power,gpu_power", "-i", "200", "-b", "1")
_SAMPLE = re.compile(r"\(([\d.]+)ms elapsed\) \*\*\*\n(?:.*\n)*?Combined Power \([^)]*\): ([\d.]+) mW\n")


def read_rapl(powercap: Path = POWERCAP) -> Counter:
    """Count the energy of all processor packages and memory; on most systems only root can.

    Cores and graphics are part of their package, and "psys", the whole board, contains all of these.
    A counter wraps to 0 at the end of its range, which takes a minute or more; read at least that often.
    """
    named = {folder: (folder / "name").read_text() for folder in sorted(powercap.glob("intel-rapl:*"))}
    zones = [folder for folder, name in named.items() if re.match("package|dram$", name)]
    if not zones:
        raise OSError(f"no RAPL counters under {powercap}")
    ranges_uj = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
    total_uj, last_uj = 0, list[int]()
    while True:
        now_uj = [int((zone / "energy_uj").read_text()) for zone in zones]
        steps = zip(now_uj, last_uj or now_uj, ranges_uj, strict=True)
        total_uj += sum((now - last) % size for now, last, size in steps)
        last_uj = now_uj
        yield total_uj * 1e-6


def read_powermetrics(command: tuple[str, ...] = COMMAND) -> Counter:
    """Count the power that macOS' powermetrics prints; it needs root, or sudo without a password.

    Each sample is the power of CPU, GPU and ANE for its duration. The output lags by up to one sample, so
    measure over several seconds.
    """
    sudo = () if os.geteuid() == 0 else ("/usr/bin/sudo", "-n")
    total = 0.0
    with NamedTemporaryFile() as written, Path(written.name).open() as file:
        process = Popen([*sudo, *command], stdin=DEVNULL, stdout=written, stderr=DEVNULL)
        try:
            unread = ""
            while process.poll() is None:
                unread += file.read()
                total += 1e-6 * sum(float(ms) * float(mw) for ms, mw in _SAMPLE.findall(unread))
                unread = _SAMPLE.sub("", unread)
                if total:
                    yield total
                else:
                    time.sleep(0.05)
            raise PermissionError("powermetrics has ended, or may not run")
        finally:
            # A process started by sudo may refuse signals.
            with suppress(PermissionError):
                process.terminate()
                process.wait()


class EnergyMeter(AbstractContextManager["EnergyMeter"]):
    """Reads the energy counter of this machine.

    source: the counted components, in words; None without a counter. reason: why there is no counter.
    """

    def __init__(self) -> None:
        is_mac = sys.platform == "darwin"
        self.source: str | None = "CPU, GPU and ANE" if is_mac else "processors and memory"
        self.reason: str | None = None
        self._counter = read_powermetrics() if is_mac else read_rapl()
        self.read()

    def read(self) -> float | None:
        """Return joules since some fixed start, to be subtracted from a later reading; None if unmeasured."""
        try:
            return next(self._counter, None)
        except (OSError, ValueError) as fault:
            needs_root = isinstance(fault, PermissionError) and os.geteuid() != 0
            self.source, self.reason = None, f"{fault}{' (needs root)' * needs_root}"
            return None

    def __exit__(self, *_: object) -> None:
        self._counter.close()
