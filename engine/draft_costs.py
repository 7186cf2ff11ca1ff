"""What the draft model's part of a wide step costs: by a formula first, then by what it really takes.

A fitted formula says that drafts of k tokens make decoding (1 + a k) / ((k + 1) r + 1 + beta k^2) times as
fast, r being a step of the draft model over one of the target. Of that, (k + 1) r is where this starts. In
place of the other parts stand measured steps (costs.py) and learned chances (gate.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.costs import StepCosts

KEEP = 0.95
"""What an observed step's weight is multiplied by at each later one."""

PRIOR_WEIGHT = 0.2
"""What holds costs to where they started, against the weight of one observed step, which is about 0.5."""

LARGEST_SURPRISE = 2.0
"""A step that took more than so many times its cost may be a pause of the machine; the next such is none."""

LEAST_SHARE = 0.1
"""No part of the cost is learned to be below this share of where it started."""


@dataclass(frozen=True, slots=True)
class DraftWork:
    """What the draft model did for one wide step. All counts but one are of its own tokens.

    num_fed: most tokens that one row was fed before the first drafted one.
    num_drafted: tokens drafted for every row, one forward each; 0 if no row was ready.
    left: (rows,) committed tokens that each row still lacks.
    carried: (rows,) for each row that wanted a draft and was ready: how many tokens were drafted for it, and
        how many of the target's tokens they came to, before those beyond what was wanted are cut off.
    """

    num_fed: int
    num_drafted: int
    left: Sequence[int]
    carried: Sequence[tuple[int, int] | None]


class DraftCosts:
    """Seconds that the draft model takes for one wide step: to catch up, to draft, and to translate.

    Three parts are learned: one for each step, one for each drafted token, one for what is fed beyond the
    first token. All numbers of rows teach a common estimate, and each its own, which starts from that.

    alone: the draft model's plain steps. target: the target's steps; they say how a forward grows with what
    it is fed. batched: whether the draft model's rows share a forward.
    is_learned: whether what is observed counts.
    """

    def __init__(
        self, alone: StepCosts, target: StepCosts, batched: bool = True, is_learned: bool = True
    ) -> None:
        self.alone = alone
        self.target = target
        self.batched = batched
        self.is_learned = is_learned
        self._all = _Fit()
        self._by_rows: dict[int, _Fit] = {}
        self._was_slow = False

    def seconds(self, num_rows: int, num_fed: int, num_drafted: int) -> float:
        """Expected seconds to feed the rows, num_fed to the one that lacks most, and to draft num_drafted."""
        fit = self._by_rows.get(num_rows, self._all)
        return self._unit_s(num_rows) * fit.value(self._parts(num_rows, num_fed, num_drafted))

    def observe(self, num_rows: int, num_fed: int, num_drafted: int, seconds: float) -> None:
        """Learn from a step. One odd step moves little, two in a row are taken for what they are."""
        if not self.is_learned:
            return
        expected_s = self.seconds(num_rows, num_fed, num_drafted)
        is_slow = seconds > LARGEST_SURPRISE * expected_s
        counted_s = seconds if self._was_slow else min(seconds, LARGEST_SURPRISE * expected_s)
        self._was_slow = is_slow
        parts = self._parts(num_rows, num_fed, num_drafted)
        # Errors count by their share: a long draft is not to outweigh the others.
        weighted = [part * self._unit_s(num_rows) / expected_s for part in parts]
        fit = self._by_rows.setdefault(num_rows, _Fit())
        self._all.learn(weighted, counted_s / expected_s, (1.0, 1.0, 1.0))
        fit.learn(weighted, counted_s / expected_s, self._all.parts)

    def _parts(self, num_rows: int, num_fed: int, num_drafted: int) -> tuple[float, float, float]:
        """By the formula a step costs the sum of these, times a plain step of the draft model."""
        grown = self.target.seconds(num_rows, max(1, num_fed)) / self.target.seconds(num_rows, 1)
        return 1.0, float(num_drafted), max(0.0, grown - 1.0)

    def _unit_s(self, num_rows: int) -> float:
        return self.alone.seconds(num_rows, 1) if self.batched else num_rows * self.alone.seconds(1, 1)


class _Fit:
    """Least squares with forgetting: what each part costs, as a multiple of the formula's."""

    def __init__(self) -> None:
        self.parts: tuple[float, ...] = (1.0, 1.0, 1.0)
        self._squares: NDArray[np.float64] = np.zeros((3, 3))
        self._products: NDArray[np.float64] = np.zeros(3)

    def value(self, x: Sequence[float]) -> float:
        """The cost of a step with so much of each part."""
        return sum(part * amount for part, amount in zip(self.parts, x, strict=True))

    def learn(self, x: Sequence[float], cost: float, start: Sequence[float]) -> None:
        """A step with so much of each part cost this; where nothing was learned, start holds."""
        row = np.array(x)
        self._squares = KEEP * self._squares + np.outer(row, row)
        self._products = KEEP * self._products + cost * row
        held = PRIOR_WEIGHT * np.eye(3)
        found = np.linalg.solve(self._squares + held, self._products + PRIOR_WEIGHT * np.array(start))
        self.parts = tuple(max(LEAST_SHARE, float(part)) for part in found)
