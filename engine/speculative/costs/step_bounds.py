"""Bounds on the seconds of steps, by real steps alone: at most of any, at least of a plain one."""

import math
from collections import deque
from dataclasses import dataclass, field

from reprise.engine.speculative.costs.cost_table import USUAL, Conditions, Shape

RECENT_STEPS = 4
"""Observed verification steps of a shape that bound its cost from above."""

RECENT_PLAIN_STEPS = 5
"""Observed plain steps whose median bounds their cost from below."""

MUCH_FASTER = 2.0
"""How many times shorter than all the latest of its size a verification step must be to cast doubt on plain
steps."""

PLAIN_AFTER_STEPS = (8, 128)
"""Verification steps after which plain steps are due: before any was observed under the same conditions, and
after that."""


class StepBounds:
    """Bounds on the seconds of a step, by the latest real steps of as many rows under the same conditions."""

    def __init__(self) -> None:
        self._plain: dict[tuple[int, Conditions], _PlainSteps] = {}
        # The seconds of the latest verification steps, by the tokens that they fed.
        self._wide: dict[tuple[int, Conditions], dict[int, deque[float]]] = {}
        self._least: dict[tuple[int, Conditions], float | None] = {}

    def most_s(self, num_rows: int, num_fed: int, plain_s: float, under: Conditions) -> float:
        """Return the maximum seconds that a verification step may take.

        The least of three bounds: a plain step for each token of a row, and one more; the seconds per token
        of an observed step with fewer tokens, and a plain step besides; the seconds of an observed step with
        more. Of observed steps the slowest of the latest counts, except for a single outlier.

        num_fed: tokens that the step feeds, over all rows. plain_s: believed seconds of a plain step.
        """
        plain_s = max(plain_s, self.least_plain_s(num_rows, under) or 0.0)
        most_s = (num_fed / num_rows + 1) * plain_s
        for fed, recent_s in self._wide.get((num_rows, under), {}).items():
            seen_s = sorted(recent_s)[-2] if len(recent_s) > 1 else recent_s[0]
            most_s = min(most_s, seen_s if fed >= num_fed else seen_s * num_fed / fed + plain_s)
        return most_s

    def least_plain_s(self, num_rows: int, under: Conditions = USUAL) -> float | None:
        """Return the minimum seconds of a plain step; None if no comparable one was observed.

        The median of the latest steps counts, unless the last of them, or a verification step since, was
        cheaper. Fewer rows, shorter rows or simpler sampling only take less, so steps with those are
        comparable too.
        """
        key = num_rows, under
        if key not in self._least:
            told = [steps.least_s for steps in self._comparable(num_rows, under) if steps.recent_s]
            self._least[key] = max(told, default=None)
        return self._least[key]

    def is_plain_due(self, num_rows: int, under: Conditions) -> bool:
        """Whether the next step should be plain: none was seen for long, or a wider one was far cheaper."""
        if self.least_plain_s(num_rows, under) is None:
            return True
        steps = self._plain.get((num_rows, under), _PlainSteps())
        return steps.is_doubted or steps.num_wide >= PLAIN_AFTER_STEPS[bool(steps.recent_s)]

    def observe_plain(self, num_rows: int, taken_s: float, under: Conditions) -> None:
        """Learn from a plain step."""
        steps = self._plain.setdefault((num_rows, under), _PlainSteps())
        self._bound(num_rows, taken_s, under)
        steps.recent_s.append(taken_s)
        steps.num_wide, steps.limit_s, steps.is_doubted = 0, math.inf, False

    def observe_wide(self, num_rows: int, num_fed: int, taken_s: float, under: Conditions) -> None:
        """Learn from a verification step that fed num_fed tokens, over all rows."""
        of_rows = self._wide.setdefault((num_rows, under), {})
        recent_s = of_rows.setdefault(num_fed, deque(maxlen=RECENT_STEPS))
        steps = self._plain.setdefault((num_rows, under), _PlainSteps())
        steps.num_wide += 1
        # The machine may have become faster, and plain steps with it.
        is_far_cheaper = MUCH_FASTER * taken_s < min(recent_s, default=0.0)
        steps.is_doubted |= is_far_cheaper or taken_s < (self.least_plain_s(num_rows, under) or 0.0)
        recent_s.append(taken_s)
        self._bound(num_rows, taken_s, under)

    def _bound(self, num_rows: int, taken_s: float, under: Conditions) -> None:
        """Note that no plain step of as many rows or fewer can take longer now than a step took."""
        for steps in self._comparable(num_rows, under):
            steps.limit_s = min(steps.limit_s, taken_s)
        self._least.clear()

    def _comparable(self, num_rows: int, under: Conditions) -> "list[_PlainSteps]":
        """Return the plain steps that take at most as long as those of num_rows rows under the conditions."""
        return [
            steps
            for (rows, there), steps in self._plain.items()
            if rows <= num_rows and there.context <= under.context and there.sampling <= under.sampling
        ]


@dataclass(slots=True)
class _PlainSteps:
    """The plain steps of one number of rows under the same conditions.

    recent_s: seconds of the latest. num_wide: the verification steps since the last one. is_doubted: whether
    one of them makes it doubtful that plain steps still take as long. limit_s: the seconds of the cheapest
    step since, of as many rows or more.
    """

    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PLAIN_STEPS))
    num_wide: int = 0
    is_doubted: bool = False
    limit_s: float = math.inf

    @property
    def least_s(self) -> float:
        """The minimum seconds of such a step, if any was observed."""
        median_s = sorted(self.recent_s)[(len(self.recent_s) - 1) // 2]
        return min(median_s, self.recent_s[-1], self.limit_s)


MEASURED_PATIENCE = 128
"""Chances that a width of measured cost lets pass before it is tried."""

DOUBTED_PATIENCE = 16
"""The same where the cost is a guess, or where measured costs of other widths were found to be wrong."""

MAX_PATIENCE = 4096
"""The same after many trials that showed what was believed."""


@dataclass(slots=True)
class _Waiting:
    patience: int
    num_missed: int = 0


class Trials:
    """Counts, for each shape of step, the chances at which it would pay if it cost less than believed.

    A trial that confirms the belief doubles the chances until the next; after any other, the next is at once.
    """

    def __init__(self) -> None:
        self._waiting: dict[Shape, _Waiting] = {}

    def is_due(self, shape: Shape, is_guess: bool) -> bool:
        """Count a chance to try a shape; return whether to try it now.

        is_guess: whether the cost of the shape was neither measured nor seen.
        """
        # What nobody ever saw is tried at its first chance.
        waiting = self._waiting.setdefault(shape, _Waiting(0 if is_guess else MEASURED_PATIENCE))
        waiting.num_missed += 1
        return waiting.num_missed > waiting.patience

    def note(self, shape: Shape, is_news: bool) -> None:
        """Count a real step of a shape. is_news: whether it took less than believed, or far more."""
        if waiting := self._waiting.get(shape):
            if is_news:
                waiting.patience = 0
            elif waiting.num_missed > waiting.patience:
                waiting.patience = min(MAX_PATIENCE, max(DOUBTED_PATIENCE, 2 * waiting.patience))
            waiting.num_missed = 0

    def doubt(self) -> None:
        """Shorten the wait of all shapes for their next trial, since beliefs were found to be wrong."""
        for waiting in self._waiting.values():
            waiting.patience = min(waiting.patience, DOUBTED_PATIENCE)
