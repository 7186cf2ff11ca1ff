"""Progress and time left: a bar in a terminal, otherwise a line per workload."""

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

_MAX_SHOWN_S = 90


class WorkProgress:
    """Shows the progress of work with a known total weight. console: where to, preferably stderr."""

    def __init__(self, console: Console, weight: float) -> None:
        self._console = console
        self._weight = weight
        self._done = 0.0
        self._start = time.perf_counter()
        self._label = ""
        bar = "[progress.description]{task.description}", "{task.percentage:>3.0f} %", "{task.fields[left]}"
        self._progress = Progress(
            TextColumn(bar[0]), BarColumn(), TextColumn(bar[1]), TextColumn(bar[2]),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=weight, left="")

    def begin(self, label: str) -> None:
        """Show what is running now."""
        if label == self._label:
            return
        self._label = label
        if self._console.is_terminal:
            self._progress.update(self._task, description=escape(label))
        else:
            self._console.print(f"{label} ({self.text()})", highlight=False, markup=False)

    def advance(self, weight: float) -> None:
        """Add finished work of this weight."""
        self._done += weight
        self._progress.update(self._task, advance=weight, left=self.left())

    def text(self) -> str:
        """Describe the progress in words."""
        share = f"{100 * self._done / self._weight:.0f} %" if self._weight else "all"
        left = self.left()
        return f"{share} done, {left}" if left else f"{share} done"

    def left(self) -> str:
        """Estimate the time left, in words; empty before any work is done."""
        if not self._done:
            return ""
        spent_s = time.perf_counter() - self._start
        return f"about {duration(spent_s * (self._weight - self._done) / self._done)} left"

    def __enter__(self) -> "WorkProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def duration(seconds: float) -> str:
    """Format a duration in seconds, or in minutes if it is long."""
    return f"{seconds:.0f} s" if seconds < _MAX_SHOWN_S else f"{seconds / 60:.0f} min"
