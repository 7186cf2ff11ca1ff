"""Power of Apple Silicon, from macOS' powermetrics. Needs root, or sudo without a password."""

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
    """Yield the joules of each sample: power of CPU, GPU and ANE, times the duration of the sample."""
    elapsed_ms: float | None = None
    for line in lines:
        if found := _ELAPSED.match(line.strip()):
            elapsed_ms = float(found[1])
        elif (found := _POWER.match(line.strip())) and elapsed_ms is not None:
            yield float(found[1]) * elapsed_ms * 1e-6
            # The GPU section repeats some figures; each sample has one combined power.
            elapsed_ms = None


class PowerMetrics:
    """powermetrics, running until the meter is closed.

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
