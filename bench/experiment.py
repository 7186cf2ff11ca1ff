"""An experiment: arms x cases x rounds, rotating, with a warm-up, resumed where it was interrupted.

Every run returns rows: plain dictionaries of JSON values. The experiment adds the arm, the case and the
round, 0 for a warm-up. All statistics come from such rows. parity() compares their token ids.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import product, zip_longest
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from rich.console import Console

Tokens = Sequence[int]
CaseT = TypeVar("CaseT")
Row = dict[str, Any]
Arm = Callable[[CaseT], list[Row]]
"""Runs a case once and returns its rows."""

LINE_EVERY_S = 60.0
"""Seconds between progress lines."""


class BenchError(Exception):
    """The benchmark has to stop; the message is one line with the reason and the way out."""


class ArgumentsError(BenchError):
    """A command's arguments are invalid, or cannot be combined."""


class Progress(AbstractContextManager["Progress"]):
    """Prints the current work, the share done and the remaining time to stderr.

    A line for each new label, and for each minute; a terminal shows one line that changes.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._label, self._total, self._done = "", 0.0, 0.0
        self._began_at = self._shown_at = monotonic()

    def plan(self, units: float) -> None:
        """Begin work of num units. The remaining time is estimated from those that are done."""
        self._total, self._done, self._began_at = units, 0.0, monotonic()

    def advance(self, units: float = 1.0) -> None:
        """Count units as done."""
        self._done += units

    def show(self, label: str, share: float | None = None) -> None:
        """Show the current work. share: progress of work that plan() does not count. Thread-safe."""
        is_new = label != self._label
        if not is_new and not self._status and monotonic() - self._shown_at < LINE_EVERY_S:
            return
        self._label, self._shown_at = label, monotonic()
        done = share if share is not None else self._done / self._total if self._total else 0.0
        left = f", {format_left(self.left_s)}" if share is None and self.left_s is not None else ""
        line = f"{label} ({100 * done:.0f} % done{left})"
        if self._status:
            self._status.update(line)
        else:
            self._console.print(line, highlight=False, markup=False)

    @property
    def left_s(self) -> float | None:
        """The estimated remaining seconds; None before anything is done."""
        taken_s = monotonic() - self._began_at
        return taken_s / self._done * (self._total - self._done) if self._done else None

    def __enter__(self) -> "Progress":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()


def format_left(seconds: float) -> str:
    """Format the remaining time in seconds, minutes or hours, rounded like an estimate."""
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


@dataclass(frozen=True)
class Experiment(Generic[CaseT]):
    """The arms, cases and rounds to run.

    arms, cases: by name, in order. Each round of a case begins with the next arm, so that a machine that
    slows down favors none of them. has_warm_up: returns whether the named case first runs unmeasured.
    resume: a file to which every run is written, and from which the runs of an interrupted experiment are
    read. key: text that identifies the experiment; a file of another one is refused.
    label: what the progress shows of a run, from the names of arm and case.
    """

    arms: Mapping[str, Arm[CaseT]]
    cases: Mapping[str, CaseT]
    rounds: int = 1
    has_warm_up: Callable[[str], bool] = lambda _: False
    resume: Path | None = None
    key: str = ""
    label: Callable[[str, str], str] = lambda arm, case: f"{case}: {arm}"

    def run(self, progress: Progress) -> list[Row]:
        """Run what the resume file lacks; return the rows of all runs, warm-ups included.

        Raises ArgumentsError if the file to resume from belongs to another experiment.
        """
        kept = self._kept()
        rows: list[Row] = []
        schedule = [*self._schedule()]
        progress.plan(len(schedule))
        for number, case, arm in schedule:
            run = {"key": self.key, "arm": arm, "case": case, "round": number}
            if (found := kept.get((arm, case, number))) is None:
                progress.show(self.label(arm, case))
                found = self.arms[arm](self.cases[case])
                if self.resume:
                    # The line break comes first, so that a line that was cut off spoils no other.
                    with self.resume.open("a", encoding="utf-8") as file:
                        file.write("\n" + json.dumps({**run, "rows": found}))
            rows += [{"arm": arm, "case": case, "round": number, **row} for row in found]
            progress.advance()
        return rows

    def _schedule(self) -> Iterator[tuple[int, str, str]]:
        """Yield (round, case, arm) of every run, in order."""
        names = list(self.arms)
        for at, case in enumerate(self.cases):
            for number in range(0 if self.has_warm_up(case) else 1, self.rounds + 1):
                first = (at + number - 1) % len(names)
                yield from ((number, case, arm) for arm in names[first:] + names[:first])

    def _kept(self) -> dict[tuple[str, str, int], list[Row]]:
        """Return the rows of the runs in the file."""
        text = self.resume.read_text(encoding="utf-8") if self.resume and self.resume.exists() else ""
        known = {}
        for line in text.split("\n"):
            # What is not JSON is the line that was being written when the experiment was interrupted.
            with suppress(ValueError):
                run = json.loads(line)
                if (key := run.get("key")) != self.key:
                    raise ArgumentsError(f"--resume: {self.resume} has the runs of another experiment: {key}")
                known[run["arm"], run["case"], run["round"]] = run["rows"]
        return known


def measured(rows: Iterable[Row]) -> list[Row]:
    """Return the measured rows: no warm-ups, and no rows whose is_measured is false."""
    return [row for row in rows if row["round"] and row.get("is_measured", True)]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by their values of these fields, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def parity(
    plain: Iterable[Tokens], drafted: Iterable[Tokens], margin: Callable[[tuple[int, ...]], float]
) -> Row:
    """Compare each plain answer with each drafted answer to the same prompt; return fields of a row.

    margin: returns the logit margin of the best token over the second after an answer's given tokens.
    """
    pairs = [(one, first_difference(one, other)) for one, other in product(plain, drafted)]
    differing = [(one, at) for one, at in pairs if at is not None]
    firsts = ({"token": at, "margin": margin(tuple(one[:at]))} for one, at in differing)
    found = {"parity_pairs": len(pairs), "parity_differing": len(differing)}
    return total_parity([found | {"first_divergence": next(firsts, None)}])


def total_parity(rows: Sequence[Row]) -> Row:
    """Combine the parity() fields of several rows."""
    pairs, differing = (sum(row[f"parity_{name}"] for row in rows) for name in ("pairs", "differing"))
    return {
        "parity": "FAIL" if differing else "PASS", "parity_pairs": pairs, "parity_differing": differing,
        "first_divergence": next((row["first_divergence"] for row in rows if row["first_divergence"]), None),
    }  # fmt: skip


def first_difference(one: Tokens, other: Tokens) -> int | None:
    """Return the index of the first differing token; the shorter length if one answer begins the other.

    Returns None for equal answers.
    """
    pairs = enumerate(zip_longest(one, other))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), None)
