"""How far it is, and how long it will take: a bar in a terminal, a line for each workload elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

_SECONDS_TOLD = 90


class Work:
    """Work of a known weight that is done piece by piece. console: where it is told, best on stderr."""

    def __init__(self, console: Console, weight: float) -> None:
        self._console = console
        self._weight = weight
        self._done = 0.0
        self._start = time.perf_counter()
        self._doing = ""
        bar = "[progress.description]{task.description}", "{task.percentage:>3.0f} %", "{task.fields[left]}"
        self._progress = Progress(
            TextColumn(bar[0]), BarColumn(), TextColumn(bar[1]), TextColumn(bar[2]),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=weight, left="")

    def begin(self, doing: str) -> None:
        """Say what is done now."""
        if doing == self._doing:
            return
        self._doing = doing
        if self._console.is_terminal:
            self._progress.update(self._task, description=escape(doing))
        else:
            self._console.print(f"{doing} ({self.text()})", highlight=False, markup=False)

    def advance(self, weight: float) -> None:
        """So much of it was done."""
        self._done += weight
        self._progress.update(self._task, advance=weight, left=self.left())

    def text(self) -> str:
        """How far it is, in words."""
        share = f"{100 * self._done / self._weight:.0f} %" if self._weight else "all"
        left = self.left()
        return f"{share} done, {left}" if left else f"{share} done"

    def left(self) -> str:
        """About how long the rest will take; empty while nothing was done."""
        if not self._done:
            return ""
        spent_s = time.perf_counter() - self._start
        return f"about {duration(spent_s * (self._weight - self._done) / self._done)} left"

    def __enter__(self) -> "Work":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def duration(seconds: float) -> str:
    """Seconds, or minutes where those are many."""
    return f"{seconds:.0f} s" if seconds < _SECONDS_TOLD else f"{seconds / 60:.0f} min"
