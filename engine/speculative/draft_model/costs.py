"""What the draft model's part of a wide step costs: by a formula first, then by what it really takes.

A fitted formula says that drafts of k tokens make decoding (1 + a k) / ((k + 1) r + 1 + beta k^2) times as
fast, r being a step of the draft model over one of the target. Of that, (k + 1) r is where this starts. In
place of the other parts stand measured steps (costs.py) and learned chances (gate.py).
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.speculative.step_costs import StepCosts

KEEP = 0.95
"""What an observed step's weight is multiplied by at each later one."""

PRIOR_WEIGHT = 0.2
"""What holds costs to where they started, against the weight of one observed step, which is about 0.5."""

FOLLOW = 0.3
"""How fast the level of all costs follows a step."""

LARGEST_SURPRISE = 2.0
"""A step that took more than so many times its cost may be a pause of the machine."""

ODD_STEPS = 8
"""It is none if another such comes within so many steps."""

MIN_SHARE = 0.02
"""No part of the cost is learned to be below this share of where it started."""

MIN_REACHED = 0.02
"""Tokens of a draft that come to be checked less often than this are not worth weighing."""

FIRST_STEPS = 3
FIRST_TOKENS = 2
"""So many steps draft no more tokens than this: the formula may be far off, and a long draft costs most."""


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


class DraftModelCosts:
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
        self._known: dict[tuple[int, int, int], float] = {}
        self._odd: dict[int, tuple[int, tuple[int, int, int, float]]] = {}
        self._num_observed = 0
        self._level = 1.0

    @property
    def is_new(self) -> bool:
        """Whether hardly anything was measured yet, so that the formula alone says what would pay."""
        return self.is_learned and self._num_observed < FIRST_STEPS

    def max_tokens(self, rate: float) -> int:
        """Most tokens that are worth weighing, if one is right with this chance; no limit for given costs."""
        if not self.is_learned:
            return sys.maxsize
        reached = max(1, int(math.log(MIN_REACHED) / math.log(rate)))
        return min(reached, FIRST_TOKENS) if self.is_new else reached

    def seconds(self, num_rows: int, num_fed: int, num_drafted: int) -> float:
        """Expected seconds to feed the rows, num_fed to the one that lacks most, and to draft num_drafted."""
        shape = num_rows, num_fed, num_drafted
        if (found := self._known.get(shape)) is None:
            fit = self._by_rows.get(num_rows, self._all)
            found = self._known[shape] = self._unit_s(num_rows) * fit.value(self._parts(*shape))
        return found

    def observe(self, num_rows: int, num_fed: int, num_drafted: int, seconds: float) -> None:
        """Learn from a step. One odd step is passed over; if there soon is another, both are learned from."""
        if not self.is_learned:
            return
        seen = num_rows, num_fed, num_drafted, max(seconds, 1e-9)
        self._num_observed += 1
        if seconds <= LARGEST_SURPRISE * self.seconds(num_rows, num_fed, num_drafted):
            self._learn(*seen)
        else:
            at, before = self._odd.pop(num_rows, (0, None))
            if before and self._num_observed - at <= ODD_STEPS:
                self._start_anew(before, seen)
            else:
                self._odd[num_rows] = self._num_observed, seen
        self._known.clear()

    def _start_anew(self, *seen: tuple[int, int, int, float]) -> None:
        """What was learned of steps with so many rows no longer holds."""
        self._all = _Fit()
        self._by_rows.pop(seen[0][0], None)
        self._level = max(seconds / self._formula_s(*shape) for *shape, seconds in seen)
        for one in seen:
            self._learn(*one)

    def _formula_s(self, *shape: int) -> float:
        return self._unit_s(shape[0]) * sum(self._parts(*shape))

    def _learn(self, num_rows: int, num_fed: int, num_drafted: int, seconds: float) -> None:
        # Errors count by their share: a long draft is not to outweigh the others.
        parts, unit_s = self._parts(num_rows, num_fed, num_drafted), self._unit_s(num_rows)
        weighted = [part * unit_s / seconds for part in parts]
        # What was not learned apart is taken to be as much dearer as the whole.
        self._level += FOLLOW * (seconds / self._formula_s(num_rows, num_fed, num_drafted) - self._level)
        self._all.learn(weighted, [self._level] * 3)
        self._by_rows.setdefault(num_rows, _Fit()).learn(weighted, self._all.parts)

    def decay_to_prior(self) -> None:
        """These costs forbid to try: with time they go back to where they started. The machine was busy."""
        self._level += (1 - KEEP) * (1.0 - self._level)
        for fit in (self._all, *self._by_rows.values()):
            fit.fade(self._level)
        self._known.clear()

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

    def learn(self, x: Sequence[float], start: Sequence[float]) -> None:
        """A step cost 1 with so much of each part; where nothing was learned, start holds."""
        row = np.array(x)
        self._squares = KEEP * self._squares + np.outer(row, row)
        self._products = KEEP * self._products + row
        self._solve(start)

    def fade(self, level: float) -> None:
        """Let what was learned weigh less, and draw nearer to level, as all parts cost by the formula."""
        self._squares, self._products = KEEP * self._squares, KEEP * self._products
        self._solve([level] * 3)

    def _solve(self, start: Sequence[float]) -> None:
        # By shares of the start, so that it is held as loosely if it is many times the formula's.
        held = PRIOR_WEIGHT / np.square(np.array(start))
        found = np.linalg.solve(self._squares + np.diag(held), self._products + held * np.array(start))
        self.parts = tuple(max(MIN_SHARE, float(part)) for part in found)
