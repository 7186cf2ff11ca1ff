"""Estimate the cost of the draft model's part of a verification step, by a formula and measured steps.

By a fitted formula, drafts of k tokens make decoding (1 + a k) / ((k + 1) r + 1 + beta k^2) times as fast,
where r is the cost of a draft model's step relative to a target's step. The estimates here start with its
term (k + 1) r. Measured steps (step_costs.py) and learned rates (acceptance.py) replace the other terms.
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reprise.engine.speculative.costs.conditions import USUAL, Conditions
from reprise.engine.speculative.costs.step_costs import StepCosts

DECAY = 0.95
"""Factor on the weight of an observed step at each later step."""

PRIOR_WEIGHT = 0.2
"""Weight of the prior costs. One observed step has a weight of about 0.5."""

LEVEL_RATE = 0.3
"""How fast the overall cost level follows an observed step, as a share of the difference."""

MAX_SURPRISE = 2.0
"""A step that took more than this many times its expected cost may be a pause of the machine."""

OUTLIER_STEPS = 8
"""Two such steps within this many steps are not a pause: the costs have changed."""

MIN_SHARE = 0.02
"""Minimum learned cost of each part, as a share of the formula's."""

MIN_REACHED = 0.02
"""Drafted tokens that verification reaches less often than this are not considered."""

FIRST_TOKENS = (1, 2, 2)
"""Maximum tokens that the first steps draft, in case the formula is far too low. A single token that costs
four plain steps is still within the slowdown budget of a new sequence."""

SIMILAR_CLASSES = 2
"""Steps tell what others cost whose contexts are up to this many times twice as long."""


@dataclass(frozen=True, slots=True)
class DraftWork:
    """The draft model's work for one verification step, counted in its own tokens unless stated otherwise.

    num_fed: tokens fed to a row before its first drafted one, the maximum over the rows.
    num_drafted: tokens drafted for every row, one forward each; 0 if no row was ready.
    num_lacking: (rows,) committed tokens that each row still lacks.
    translated: (rows,) for each row that wanted a draft and was ready, the number of tokens drafted for it
        and the number of target tokens they became, before the surplus over the wanted tokens is cut off;
        None for other rows.
    """

    num_fed: int
    num_drafted: int
    num_lacking: Sequence[int]
    translated: Sequence[tuple[int, int] | None]


class PlainCosts(Protocol):
    """The seconds that forward passes of a draft model or a head take."""

    def seconds(self, num_rows: int, width: int, under: Conditions) -> float:
        """Return the seconds of a step of that many rows, each fed width tokens, under these conditions."""


@dataclass(frozen=True, slots=True)
class ShareOfTarget:
    """The prior cost of a head: a share of a target's step, by the bytes of weights that each reads.

    The cost grows with the context as the target's does, so what is learned of a head is relative to that.
    """

    target: StepCosts
    share: float

    def seconds(self, num_rows: int, width: int, under: Conditions) -> float:
        """Implement PlainCosts."""
        return self.share * self.target.seconds(num_rows, width, under)


class DraftModelCosts:
    """Seconds that the draft model takes for one verification step: to catch up, draft and translate.

    Three parts of the cost are learned: one per step, one per drafted token, and one for tokens fed beyond
    the first. Each number of rows has an estimate of its own, which starts from an estimate common to all.

    alone: costs of the draft model's plain steps, or of a token that a head drafts.
    target: costs of the target's steps, which show how the cost of a forward grows with its width.
    batched: whether the draft model's rows share a forward.
    is_learned: whether observed steps change the costs.
    """

    def __init__(
        self, alone: PlainCosts, target: StepCosts, batched: bool = True, is_learned: bool = True
    ) -> None:
        self.alone = alone
        self.target = target
        self.batched = batched
        self.is_learned = is_learned
        self._all = _Fit()
        self._by_rows: dict[int, _Fit] = {}
        self._cached: dict[tuple[int, int, int], float] = {}
        self._outliers: dict[int, tuple[int, _Seen]] = {}
        # By the class of the longest context.
        self._num_observed: Counter[int] = Counter()
        self._level = 1.0

    def is_new(self, under: Conditions) -> bool:
        """Whether so few steps under such conditions were observed that the formula still dominates."""
        return self.is_learned and self._num_similar(under) < len(FIRST_TOKENS)

    def first_tokens(self, under: Conditions) -> int:
        """Return the maximum tokens of a draft, which rises with the steps observed under such conditions."""
        return FIRST_TOKENS[self._num_similar(under)] if self.is_new(under) else sys.maxsize

    def max_tokens(self, rate: float, under: Conditions) -> int:
        """Return the maximum tokens of a draft to consider at this rate; no limit if not learning."""
        if not self.is_learned:
            return sys.maxsize
        reached = max(1, int(math.log(MIN_REACHED) / math.log(rate)))
        return min(reached, self.first_tokens(under))

    def seconds(self, num_rows: int, num_fed: int, num_drafted: int, under: Conditions = USUAL) -> float:
        """Return the expected seconds to feed each row up to num_fed tokens and draft num_drafted."""
        shape = num_rows, num_fed, num_drafted
        if (found := self._cached.get(shape)) is None:
            fit = self._by_rows.get(num_rows, self._all)
            found = self._cached[shape] = fit.value(self._parts(*shape))
        return found * self._unit_s(num_rows, under)

    def observe(
        self, num_rows: int, num_fed: int, num_drafted: int, seconds: float, under: Conditions = USUAL
    ) -> None:
        """Learn from a step: rows were fed up to num_fed tokens, and num_drafted were drafted for each.

        A single outlier is ignored, unless the costs are new; a second one soon after replaces the estimates.
        """
        if not self.is_learned:
            return
        shape = num_rows, num_fed, num_drafted
        # In plain steps of the draft model.
        seen = *shape, max(seconds, 1e-9) / self._unit_s(num_rows, under)
        is_outlier = seconds > MAX_SURPRISE * self.seconds(*shape, under)
        if is_outlier and self.is_new(under):
            self._restart(seen)
        elif is_outlier:
            total = self._num_observed.total()
            at, before = self._outliers.pop(num_rows, (0, None))
            if before and total - at < OUTLIER_STEPS:
                self._restart(before, seen)
            else:
                self._outliers[num_rows] = total, seen
        else:
            self._learn(*seen)
        self._num_observed[under.context] += 1
        self._cached.clear()

    def _num_similar(self, under: Conditions) -> int:
        return sum(n for c, n in self._num_observed.items() if c >= under.context - SIMILAR_CLASSES)

    def _restart(self, *seen: "_Seen") -> None:
        """Forget the common estimate and that of this number of rows, then learn from these steps."""
        self._all = _Fit()
        self._by_rows.pop(seen[0][0], None)
        self._level = max(cost / sum(self._parts(*shape)) for *shape, cost in seen)
        for one in seen:
            self._learn(*one)

    def _learn(self, num_rows: int, num_fed: int, num_drafted: int, cost: float) -> None:
        # Relative errors: otherwise long drafts would outweigh short ones.
        parts = self._parts(num_rows, num_fed, num_drafted)
        weighted = [part / cost for part in parts]
        # Parts that were not observed separately are assumed to scale with the total.
        self._level += LEVEL_RATE * (cost / sum(parts) - self._level)
        self._all.learn(weighted, [self._level] * 3)
        self._by_rows.setdefault(num_rows, _Fit()).learn(weighted, self._all.parts)

    def decay_to_prior(self) -> None:
        """Move the costs a little toward the formula.

        Called when the costs rule out a probe: they may have been learned while the machine was busy.
        """
        self._level += (1 - DECAY) * (1.0 - self._level)
        for fit in (self._all, *self._by_rows.values()):
            fit.fade(self._level)
        self._cached.clear()

    def _parts(self, num_rows: int, num_fed: int, num_drafted: int) -> tuple[float, float, float]:
        """Return the parts of a step's cost by the formula, in plain steps of the draft model."""
        grown = self.target.seconds(num_rows, max(1, num_fed)) / self.target.seconds(num_rows, 1)
        return 1.0, float(num_drafted), max(0.0, grown - 1.0)

    def _unit_s(self, num_rows: int, under: Conditions) -> float:
        if self.batched:
            return self.alone.seconds(num_rows, 1, under)
        return num_rows * self.alone.seconds(1, 1, under)


_Seen = tuple[int, int, int, float]
"""(rows, tokens fed, tokens drafted) of a step, and what it took, in plain steps of the draft model."""


class _Fit:
    """Least squares with forgetting: the cost of each part, as a multiple of the formula's."""

    def __init__(self) -> None:
        self.parts: tuple[float, ...] = (1.0, 1.0, 1.0)
        self._squares: NDArray[np.float64] = np.zeros((3, 3))
        self._products: NDArray[np.float64] = np.zeros(3)

    def value(self, x: Sequence[float]) -> float:
        """Return the cost of a step with these amounts of each part."""
        return sum(part * amount for part, amount in zip(self.parts, x, strict=True))

    def learn(self, x: Sequence[float], start: Sequence[float]) -> None:
        """Learn from a step of cost 1 with these amounts of each part. start: costs of unobserved parts."""
        row = np.array(x)
        self._squares = DECAY * self._squares + np.outer(row, row)
        self._products = DECAY * self._products + row
        self._solve(start)

    def fade(self, level: float) -> None:
        """Reduce the weight of observed steps, so that all parts move toward level."""
        self._squares, self._products = DECAY * self._squares, DECAY * self._products
        self._solve([level] * 3)

    def _solve(self, start: Sequence[float]) -> None:
        # Weighted relative to start: otherwise a start of many times the formula's would weigh more.
        weight = PRIOR_WEIGHT / np.square(np.array(start))
        found = np.linalg.solve(self._squares + np.diag(weight), self._products + weight * np.array(start))
        self.parts = tuple(max(MIN_SHARE, float(part)) for part in found)
