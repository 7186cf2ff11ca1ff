"""An experiment: arms x cases x rounds, alternating, with a warm-up, and resumed where it was interrupted.

Every run returns rows: plain dictionaries that JSON has. The experiment adds the arm, the case and the
round, 0 for a warm-up. All statistics are computed from such rows. parity() compares their token ids.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from reprise.bench.errors import ArgumentsError

Tokens = Sequence[int]
CaseT = TypeVar("CaseT")
Row = dict[str, Any]
Arm = Callable[[CaseT], list[Row]]
"""Runs a case once and returns its rows."""


def parity(
    plain: Iterable[Tokens], drafted: Iterable[Tokens], margin: Callable[[tuple[int, ...]], float]
) -> Row:
    """Compare each plain answer with each drafted answer to the same prompt; return fields of a row.

    margin: returns by how much the best token leads the second best after the given tokens of an answer.
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


@dataclass(frozen=True)
class Experiment(Generic[CaseT]):
    """The arms, cases and rounds to run.

    arms, cases: by name, in order. has_warm_up: returns whether the named case first runs unmeasured.
    order: "reverse" turns the order of the arms around in every other round, so that a machine that slows
    down favors none of them; "rotate" begins each run of a case with the next arm.
    resume: a file to which every run is written, and from which the runs of an interrupted experiment are
    read. key: text that identifies the experiment; a file of another one is refused.
    """

    arms: Mapping[str, Arm[CaseT]]
    cases: Mapping[str, CaseT]
    rounds: int
    has_warm_up: Callable[[str], bool] = lambda _: True
    order: Literal["reverse", "rotate"] = "reverse"
    resume: Path | None = None
    key: str = ""

    def run(self) -> list[Row]:
        """Run all that the file to resume from lacks; return the rows of all runs, warm-ups included.

        Raises ArgumentsError if the file to resume from belongs to another experiment.
        """
        kept = self._kept()
        rows: list[Row] = []
        for number, case, arm in self._schedule():
            run = {"key": self.key, "arm": arm, "case": case, "round": number}
            if (found := kept.get((arm, case, number))) is None:
                found = self.arms[arm](self.cases[case])
                if self.resume:
                    # The line break comes first, so that a line that was cut off spoils no other.
                    with self.resume.open("a", encoding="utf-8") as file:
                        file.write("\n" + json.dumps({**run, "rows": found}))
            rows += [{"arm": arm, "case": case, "round": number, **row} for row in found]
        return rows

    def _schedule(self) -> Iterator[tuple[int, str, str]]:
        """Yield (round, case, arm) of every run, in order."""
        names = list(self.arms)
        rounds = [(at, case) for case in self.cases for at in range(self.rounds + 1)]
        runs = [(at, case) for at, case in rounds if at or self.has_warm_up(case)]
        for place, (number, case) in enumerate(runs):
            first = place % len(names) if self.order == "rotate" else 0
            step = -1 if self.order == "reverse" and number % 2 else 1
            yield from ((number, case, arm) for arm in (names[first:] + names[:first])[::step])

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
