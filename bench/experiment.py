"""An experiment: arms x cases x rounds, rotating, with a warm-up.

Every run returns rows: plain dictionaries of JSON values. The experiment adds the arm, the case and the
round, 0 for a warm-up. All statistics come from such rows. parity() compares their token ids.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product, zip_longest
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
    """Prints the current work and the share done to stderr.

    A line for each new label, and for each minute; a terminal shows one line that changes.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._label, self._shown_at = "", 0.0

    def show(self, label: str, share: float | None = None) -> None:
        """Show the current work. share: how much of all is done, if known. Thread-safe."""
        line = label if share is None else f"{label} ({100 * share:.0f} % done)"
        if self._status:
            self._status.update(line)
        elif label != self._label or monotonic() - self._shown_at >= LINE_EVERY_S:
            self._label, self._shown_at = label, monotonic()
            self._console.print(line, highlight=False, markup=False)

    def __enter__(self) -> "Progress":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()


@dataclass(frozen=True)
class Experiment(Generic[CaseT]):
    """The arms, cases and rounds to run.

    arms, cases: by name, in order. Each round of a case begins with the next arm, so that a machine that
    slows down favors none of them. has_warm_up: returns whether the named case first runs unmeasured.
    label: what the progress shows of a run, from the names of arm and case.
    """

    arms: Mapping[str, Arm[CaseT]]
    cases: Mapping[str, CaseT]
    rounds: int = 1
    has_warm_up: Callable[[str], bool] = lambda _: False
    label: Callable[[str, str], str] = lambda arm, case: f"{case}: {arm}"

    def run(self, progress: Progress) -> list[Row]:
        """Return the rows of all runs, warm-ups included."""
        names = list(self.arms)
        schedule = []
        for at, case in enumerate(self.cases):
            for number in range(0 if self.has_warm_up(case) else 1, self.rounds + 1):
                first = (at + number - 1) % len(names)
                schedule += [(number, case, arm) for arm in names[first:] + names[:first]]
        rows: list[Row] = []
        for done, (number, case, arm) in enumerate(schedule):
            progress.show(self.label(arm, case), done / len(schedule))
            found = self.arms[arm](self.cases[case])
            rows += [{"arm": arm, "case": case, "round": number, **row} for row in found]
        return rows


def measured(rows: Iterable[Row]) -> list[Row]:
    """Return the measured rows: no warm-ups."""
    return [row for row in rows if row["round"]]


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
