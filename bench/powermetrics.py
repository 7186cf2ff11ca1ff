"""Power of Apple Silicon, as macOS' own powermetrics prints it. It needs root, or sudo without a password."""

import os
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO

INTERVAL_MS = 200
FIRST_SAMPLE_S = 5.0
_END_S = 5.0
COMMAND = ("/usr/bin/powermetrics", "--samplers", "cpu_power,gpu_power", "-i", str(INTERVAL_MS), "-b", "1")

_ELAPSED = re.compile(r"^\*\*\* Sampled system activity .*\(([\d.]+)ms elapsed\) \*\*\*$")
_POWER = re.compile(r"^Combined Power \([^)]*\): ([\d.]+) mW$")


def read_samples(lines: Iterable[str]) -> Iterator[float]:
    """Joules of each sample that powermetrics prints: power of CPU, GPU and ANE, times the sample's time."""
    elapsed_ms: float | None = None
    for line in lines:
        if found := _ELAPSED.match(line.strip()):
            elapsed_ms = float(found[1])
        elif (found := _POWER.match(line.strip())) and elapsed_ms is not None:
            yield float(found[1]) * elapsed_ms * 1e-6
            # The section of the GPU repeats some figures; a sample has one combined power.
            elapsed_ms = None


class PowerMetrics:
    """powermetrics in a process of its own, for as long as the meter lasts.

    What it says lags by up to one interval, so what is measured should take seconds.
    Raises PermissionError if it may not run here, OSError if it is not there or says nothing.
    """

    what = "CPU, GPU and ANE"

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        prefix = () if os.geteuid() == 0 else ("/usr/bin/sudo", "-n")
        self._process = subprocess.Popen(
            [*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self._joules = 0.0
        self._is_telling = threading.Event()
        self._is_closing = False
        output = self._process.stdout
        assert output is not None, "it was asked for"
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()
        is_over = self._is_telling.wait(FIRST_SAMPLE_S) and not self._joules
        if not self._joules:
            self.close()
            raise PermissionError if is_over else OSError("powermetrics says nothing")

    def joules(self) -> float:
        """Joules since it was started. Raises OSError if powermetrics has ended."""
        if self._process.poll() is not None:
            raise OSError("powermetrics has ended")
        return self._joules

    def close(self) -> None:
        """End it."""
        self._is_closing = True
        # A process that sudo started may not be signalled; it ends when nobody reads it any more.
        with suppress(PermissionError):
            self._process.terminate()
        self._reader.join(_END_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _read(self, output: IO[str]) -> None:
        with output:
            for joules in read_samples(output):
                self._joules += joules
                self._is_telling.set()
                if self._is_closing:
                    break
        self._is_telling.set()
