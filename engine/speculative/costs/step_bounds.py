"""Bounds on the seconds of steps, by real steps alone: at most of any, at least of a plain one."""

import math
from collections import deque

from reprise.engine.speculative.costs.conditions import USUAL, Conditions

RECENT_STEPS = 4
"""Observed verification steps of a shape that bound its cost from above."""

RECENT_PLAIN_STEPS = 5
"""Observed plain steps whose median bounds their cost from below."""

PLAIN_AFTER_STEPS = (8, 128)
"""Verification steps after which plain steps are due: before any was observed under the same conditions, and
after that."""


class StepBounds:
    """Bounds on the seconds of a step, by the latest real steps of as many rows under the same conditions."""

    def __init__(self) -> None:
        self._plain: dict[tuple[int, Conditions], _PlainSteps] = {}
        # By the tokens that the steps fed.
        self._wide: dict[tuple[int, Conditions], dict[int, _WideSteps]] = {}
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
        for fed, seen in self._wide.get((num_rows, under), {}).items():
            most_s = min(most_s, seen.most_s if fed >= num_fed else seen.most_s * num_fed / fed + plain_s)
        return most_s

    def least_plain_s(self, num_rows: int, under: Conditions = USUAL) -> float | None:
        """Return the minimum seconds of a plain step; None if no comparable one was observed.

        The median of the latest steps counts, unless a verification step was cheaper since. Fewer rows,
        shorter rows or simpler sampling only take less, so steps with those are comparable too.
        """
        key = num_rows, under
        if key not in self._least:
            told = [
                steps.least_s
                for (rows, there), steps in self._plain.items()
                if rows <= num_rows and there.context <= under.context and there.sampling <= under.sampling
            ]
            self._least[key] = max((each for each in told if each is not None), default=None)
        return self._least[key]

    def is_plain_due(self, num_rows: int, under: Conditions) -> bool:
        """Whether the next step should be a plain one, because the cost of plain steps is not known well."""
        steps = self._plain.get((num_rows, under))
        if steps is None or not steps.recent_s:
            if self.least_plain_s(num_rows, under) is None:
                return True
            return steps is not None and steps.num_wide >= PLAIN_AFTER_STEPS[0]
        return steps.num_wide >= PLAIN_AFTER_STEPS[1]

    def observe_plain(self, num_rows: int, taken_s: float, under: Conditions) -> None:
        """Learn from a plain step of num_rows rows that took taken_s seconds."""
        steps = self._plain.setdefault((num_rows, under), _PlainSteps())
        steps.recent_s.append(taken_s)
        steps.num_wide, steps.least_wide_s = 0, math.inf
        self._least.clear()

    def observe_wide(self, num_rows: int, num_fed: int, taken_s: float, under: Conditions) -> None:
        """Learn from a verification step that fed num_fed tokens, over all rows, in taken_s seconds."""
        observed = self._wide.setdefault((num_rows, under), {})
        observed.setdefault(num_fed, _WideSteps()).recent_s.append(taken_s)
        steps = self._plain.setdefault((num_rows, under), _PlainSteps())
        steps.num_wide += 1
        # No plain step can have taken longer than this one did.
        steps.least_wide_s = min(steps.least_wide_s, taken_s)
        self._least.clear()


class _PlainSteps:
    """The plain steps of one number of rows under the same conditions.

    recent_s: seconds of the latest. num_wide, least_wide_s: the verification steps since the last one, and
    the seconds of the cheapest of them.
    """

    def __init__(self) -> None:
        self.recent_s: deque[float] = deque(maxlen=RECENT_PLAIN_STEPS)
        self.num_wide = 0
        self.least_wide_s = math.inf

    @property
    def least_s(self) -> float | None:
        """The minimum seconds of such a step; None if none was observed."""
        if not self.recent_s:
            return None
        return min(sorted(self.recent_s)[(len(self.recent_s) - 1) // 2], self.least_wide_s)


class _WideSteps:
    """The verification steps of one number of rows under the same conditions that fed as many tokens.

    recent_s: seconds of the latest.
    """

    def __init__(self) -> None:
        self.recent_s: deque[float] = deque(maxlen=RECENT_STEPS)

    @property
    def most_s(self) -> float:
        """The maximum seconds of such a step."""
        return sorted(self.recent_s)[-2] if len(self.recent_s) > 1 else self.recent_s[0]
