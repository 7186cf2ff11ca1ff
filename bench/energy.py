"""Energy counters of the machine: RAPL on Linux, powermetrics on macOS.

They count whole components, so other work and idle power are included. Where they cannot be read, nothing is
estimated. A counter is an iterator: each step gives the joules since its start, or raises OSError.
"""

import os
import re
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import IO, Self

Counter = Generator[float, None, None]
POWERCAP = Path("/sys/class/powercap")
COMMAND = ("/usr/bin/powermetrics", "--samplers", "cpu_power,gpu_power", "-i", "200", "-b", "1")

_ELAPSED = re.compile(r"^\*\*\* Sampled system activity .*\(([\d.]+)ms elapsed\) \*\*\*$")
_POWER = re.compile(r"^Combined Power \([^)]*\): ([\d.]+) mW$")


def read_rapl(powercap: Path = POWERCAP) -> Counter:
    """Count what all processor packages and memory take; on most systems only root can.

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


def read_samples(lines: Iterable[str]) -> Iterator[float]:
    """Yield the joules of each sample: power of CPU, GPU and ANE, times the duration of the sample."""
    elapsed_ms = 0.0
    for line in map(str.strip, lines):
        if found := _ELAPSED.match(line):
            elapsed_ms = float(found[1])
        elif found := _POWER.match(line):
            yield float(found[1]) * elapsed_ms * 1e-6


def read_powermetrics(command: tuple[str, ...] = COMMAND) -> Counter:
    """Count what macOS' powermetrics prints, which may run as root or where sudo asks for no password.

    Its output lags by up to one sample, so measure over several seconds.
    """
    sudo = () if os.geteuid() == 0 else ("/usr/bin/sudo", "-n")
    process = Popen([*sudo, *command], stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, text=True)
    samples: SimpleQueue[float] = SimpleQueue()
    Thread(target=_pass_on, args=(process.stdout, samples), daemon=True).start()
    try:
        if not (total := samples.get()):
            raise PermissionError("powermetrics may not run")
        while process.poll() is None:
            while not samples.empty():
                total += samples.get()
            yield total
        raise OSError("powermetrics has ended")
    finally:
        # A process started by sudo may refuse signals; it ends with this one, which reads its output.
        with suppress(PermissionError):
            process.terminate()
            process.wait()


def _pass_on(output: IO[str], samples: SimpleQueue[float]) -> None:
    """Put all samples into the queue, and 0 at the end, so that nobody waits for more."""
    with output:
        for joules in read_samples(output):
            samples.put(joules)
    samples.put(0.0)


class EnergyMeter:
    """Reads the energy counter of this machine.

    source: what is counted, in words; None if nothing is. reason: why nothing is counted.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._counter.close()
