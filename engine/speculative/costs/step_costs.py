"""The cost of a step in seconds, learned from the steps that the server takes.

The cost of drafting is judged against real plain steps, so some are taken even while drafts pay. Estimates
can be wrong, so a width estimated unprofitable is measured again now and then.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from reprise.engine.speculative.costs.cost_table import (
    CONFIRMED,
    UNSEEN_S,
    USUAL,
    Conditions,
    CostTable,
    Effect,
    Noise,
    Shape,
    StepPrice,
    Table,
)

RECENT_STEPS, RECENT_PLAIN_STEPS = 4, 5
"""Observed verification steps of a shape that bound its cost from above, and plain steps whose median bounds
theirs from below."""

MUCH_FASTER = 2.0
"""How many times shorter than all the latest of its size a verification step must be to cast doubt on plain
steps."""

PLAIN_AFTER_STEPS = (8, 128)
"""Verification steps after which plain steps are due: before any was observed under the same conditions, and
after that."""


class StepBounds:
    """Bounds on a step's seconds, from the latest steps of as many rows under the same conditions."""

    def __init__(self) -> None:
        self._plain: dict[tuple[int, Conditions], _PlainSteps] = {}
        # The seconds of the latest verification steps, by the tokens that they fed.
        self._wide: dict[tuple[int, Conditions], dict[int, deque[float]]] = {}
        self._least: dict[tuple[int, Conditions], float | None] = {}

    def most_s(self, num_rows: int, num_fed: int, plain_s: float, under: Conditions) -> float:
        """Return the maximum seconds that a verification step can take: the least of three bounds.

        The bounds are: a plain step per token of a row, and one more; the seconds per token of an observed
        step with fewer tokens, and a plain step; the seconds of an observed step with more tokens. The
        slowest of the latest observed steps counts, except for a single outlier.
        num_fed: tokens that the step feeds, over all rows. plain_s: estimated seconds of a plain step.
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
        cheaper. Fewer rows, shorter rows or simpler sampling only cost less, so such steps count too.
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
        if (steps := self._plain.get((num_rows, under))) is None:
            return False
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
        """Record that plain steps of at most as many rows cannot take longer than this step did."""
        for steps in self._comparable(num_rows, under):
            steps.limit_s = min(steps.limit_s, taken_s)
        self._least.clear()

    def _comparable(self, num_rows: int, under: Conditions) -> "list[_PlainSteps]":
        """Return the plain steps that cost at most as much as num_rows rows under the conditions."""
        return [
            steps
            for (rows, there), steps in self._plain.items()
            if rows <= num_rows and there.context <= under.context and there.sampling <= under.sampling
        ]


@dataclass(slots=True)
class _PlainSteps:
    """The plain steps of one number of rows under the same conditions.

    recent_s: seconds of the latest. num_wide: verification steps since the last one. is_doubted: whether one
        of them suggests that plain steps have become faster. limit_s: the seconds of the cheapest step since,
        of as many rows or more.
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


MEASURED_PATIENCE, KEPT_PATIENCE, DOUBTED_PATIENCE, MAX_PATIENCE = 128, 8, 16, 4096
"""Chances that a width lets pass before it is tried: if its cost was measured; if an earlier run learned it,
or others published it; if other costs were found to be wrong, or its first trial showed what was believed;
and after many trials that did."""


@dataclass(slots=True)
class _Waiting:
    patience: int
    num_missed: int = 0


class Trials:
    """Decides when to try a shape that would pay if it cost less than estimated.

    Chances to try it are counted. A trial that confirms the estimate doubles the number of chances until
    the next trial. After a surprise, the next chance is a trial.
    """

    def __init__(self) -> None:
        self._waiting: dict[Shape, _Waiting] = {}

    def is_due(self, shape: Shape, patience: int) -> bool:
        """Count a chance to try a shape; return whether to use it. patience: chances to pass at first."""
        waiting = self._waiting.setdefault(shape, _Waiting(patience))
        waiting.num_missed += 1
        return waiting.num_missed > waiting.patience

    def note(self, shape: Shape, is_news: bool) -> None:
        """Count a step of a shape. is_news: whether it took less than estimated, or far more."""
        if waiting := self._waiting.get(shape):
            if is_news:
                waiting.patience = 0
            elif waiting.num_missed > waiting.patience:
                waiting.patience = min(MAX_PATIENCE, max(DOUBTED_PATIENCE, 2 * waiting.patience))
            waiting.num_missed = 0

    def doubt(self) -> None:
        """Shorten all shapes' wait for their next trial, because estimates were wrong."""
        for waiting in self._waiting.values():
            waiting.patience = min(waiting.patience, DOUBTED_PATIENCE)


K = TypeVar("K")

MEASURED_VARIANCE, SEEN_VARIANCE, GUESS_VARIANCE = 0.07**2, 0.3**2, 1.0
"""Variance of the logarithm of a cost that the table was given, that was seen in one step, or guessed."""

PLAIN_VARIANCE, WIDE_VARIANCE, OWN_VARIANCE = 0.5**2, 0.15**2, 0.04**2
"""The same of what all plain steps share, all verification steps, and one shape under some conditions."""

FIRST_PLACE_VARIANCE, PLACE_VARIANCE = 0.03**2, 0.2**2
"""The same of what steps share under the first conditions, which show what all share, and under others."""

SHARED_DRIFT, SHAPE_DRIFT, PLACE_DRIFT, OWN_DRIFT = 0.06**2, 0.01**2, 0.005**2, 0.005**2
"""A step's increase of these variances."""

CHEAPER = math.log(1.2)
"""A trial that is cheaper than expected by more than this, on a log scale, is repeated at once."""

WRONG = math.log(1.5)
"""A cost in the table that differs from real steps by more than this, on a log scale, was wrong."""

MAX_WRONG_SHAPES = 2
"""Shapes with wrong costs, from which on only those are believed that real steps have confirmed."""


class StepCosts:
    """The expected seconds of a step by its rows, widths and conditions, and bounds on them.

    If the table has only guesses, the first observed step shows how long a plain one takes. What is learned
    are effects, which are added to the logarithm of the table's costs. A plain step's cost has an effect
    common to all, one of its conditions, and one of its number of rows under them. A verification step has
    these, and one common to verification steps, one of its shape, one of its conditions, and one of its shape
    under them.

    table: costs known in advance; seconds by shape count as measured.
    widths: the table's, in ascending order; the first is 1.
    batched: whether all rows share a forward pass; otherwise each row has its own, and costs add up.
    is_learned: whether observed steps change the costs.
    """

    def __init__(self, table: CostTable | Table, batched: bool = True, is_learned: bool = True) -> None:
        self.table = table if isinstance(table, CostTable) else CostTable(table)
        self.widths = self.table.widths
        self.batched = batched
        self.is_learned = is_learned
        self.bounds = StepBounds()
        self.trials = Trials()
        self._plain = Effect(PLAIN_VARIANCE, SHARED_DRIFT)
        self._plain_under: dict[Conditions, Effect] = {}
        self._plain_of: dict[tuple[int, Conditions], Effect] = {}
        self._wide = Effect(WIDE_VARIANCE, SHARED_DRIFT)
        self._wide_under: dict[Conditions, Effect] = {}
        self._wide_of: dict[Shape, Effect] = {}
        self._wide_of_under: dict[tuple[Shape, Conditions], Effect] = {}
        self._plain_noise, self._wide_noise = Noise(), Noise()
        self._wrong: set[Shape] = set()
        self._forget_estimates()

    def seconds(self, num_rows: int, width: int, under: Conditions = USUAL) -> float:
        """Return the expected seconds of a step whose rows all have the same width."""
        return self.even_steps(num_rows, under)(width)

    def even_steps(self, num_rows: int, under: Conditions = USUAL) -> Callable[[int], float]:
        """Return a function from a width to the expected seconds of a step whose rows all have that width.

        The function holds until the next step is observed.
        """
        if (found := self._even_steps.get((num_rows, under))) is None:
            plain = self._plain_effect(num_rows, under)
            wide = plain + self._wide.mean + _mean(self._wide_under, under)

            @cache
            def step_s(width: int) -> float:
                if width == 1:
                    return self._table_s(num_rows, 1) * math.exp(plain)
                at = bisect_left(self.widths, width)
                if 0 < at < len(self.widths) and self.widths[at] != width:
                    low, high = self.widths[at - 1 : at + 1]
                    return step_s(low) + (width - low) / (high - low) * (step_s(high) - step_s(low))
                shape = num_rows, width
                own = _mean(self._wide_of, shape) + _mean(self._wide_of_under, (shape, under))
                return self._table_s(num_rows, width) * math.exp(wide + own)

            found = self._even_steps[num_rows, under] = step_s
        return found

    def step_s(self, widths: Sequence[int], under: Conditions = USUAL) -> float:
        """Return the expected seconds of a step whose rows have these widths."""
        num_rows, widest = len(widths), max(widths)
        even_s = self.seconds(num_rows, widest, under)
        if self.batched or num_rows == 1:
            return even_s
        sum_s = sum([self.table.seconds(1, width) for width in widths])
        return even_s * sum_s / self._table_s(num_rows, widest)

    def least_steps(self, num_rows: int, under: Conditions = USUAL) -> Callable[[int], float]:
        """Return a function from a width to the least seconds that such a step can take.

        The width's own estimate may be wrong: what counts is the next narrower width that was observed, and
        at least a plain step.
        """
        step_s = self.even_steps(num_rows, under)
        known = [w for w in self.widths if w > 1 and (num_rows, w) in self._wide_of]

        def least_s(width: int) -> float:
            at = bisect_left(known, width)
            return max(step_s(1), step_s(known[at - 1])) if at else step_s(1)

        return least_s

    def most_s(self, widths: Sequence[int], under: Conditions = USUAL) -> float:
        """Return the maximum seconds of a verification step, by observed steps; see StepBounds."""
        if not self.is_learned:
            return self.step_s(widths, under)
        plain_s = self.seconds(len(widths), 1, under)
        return self.bounds.most_s(len(widths), self._num_fed(widths), plain_s, under)

    def least_plain_s(self, num_rows: int, under: Conditions = USUAL) -> float | None:
        """Return the minimum seconds of a plain step, by observed ones; None if none is comparable."""
        if not self.is_learned:
            return self.seconds(num_rows, 1, under)
        return self.bounds.least_plain_s(num_rows, under)

    def min_ratio(self, num_rows: int, under: Conditions = USUAL) -> float:
        """Return the expected cost of the cheapest verification step, relative to a plain step."""
        step_s = self.even_steps(num_rows, under)
        return min([step_s(width) for width in self.widths if width > 1], default=0.0) / step_s(1)

    def is_plain_due(self, num_rows: int, under: Conditions) -> bool:
        """Whether the next step should be plain, because the cost of plain steps is uncertain."""
        return self.is_learned and self.bounds.is_plain_due(num_rows, under)

    def is_trial_due(self, num_rows: int, width: int) -> bool:
        """Return whether to measure again a width estimated unprofitable. Each call counts as a chance."""
        shape = self._shape(num_rows, width)
        # What an earlier run learned, or others published, may be wrong, but seldom is.
        patience = KEPT_PATIENCE if shape in self.table.guesses else 0
        return self.trials.is_due(shape, MEASURED_PATIENCE if shape in self.table.measured else patience)

    def price(self, num_rows: int, width: int, under: Conditions = USUAL) -> StepPrice:
        """Return a step's cost relative to a plain step's, and whether it was seen."""
        step_s, is_seen = self.even_steps(num_rows, under), self._shape(num_rows, width) in self._wide_of
        return StepPrice(num_rows, width, step_s(width) / step_s(1), is_seen)

    def learned_ratios(self) -> dict[Shape, float]:
        """Return the costs of all observed shapes, relative to plain steps of as many rows."""
        shapes = [shape for shape in self._wide_of if self.batched or shape[0] == 1]
        return {shape: self.price(*shape).ratio for shape in shapes}

    def observe_plain(self, num_rows: int, taken_s: float, under: Conditions = USUAL) -> None:
        """Learn from a plain step dispatched while another was in flight."""
        if not self.is_learned:
            return
        self._note_first(self.seconds(num_rows, 1, under), taken_s)
        difference = math.log(max(taken_s, 1e-9) / self.seconds(num_rows, 1, under))
        self._plain_noise.learn(self._plain_effects(num_rows, under), self._plain, difference)
        self.bounds.observe_plain(num_rows, taken_s, under)
        self._forget_estimates()

    def observe_wide(self, widths: Sequence[int], taken_s: float, under: Conditions = USUAL) -> None:
        """Learn from a verification step."""
        if not self.is_learned:
            return
        num_rows, taken_s = len(widths), max(taken_s, 1e-9)
        self._note_first(self.step_s(widths, under), taken_s)
        shape = self._shape(num_rows, max(widths))
        if shape not in self.table.measured and (self.batched or num_rows == 1):
            self._take_from_step(shape, max(widths), taken_s, under)
        difference = math.log(taken_s / self.step_s(widths, under))
        own = MEASURED_VARIANCE if shape in self.table.measured else GUESS_VARIANCE
        own_here = Effect(OWN_VARIANCE, OWN_DRIFT, num_seen=CONFIRMED)
        effects = [
            self._wide_of.setdefault(shape, Effect(own, SHAPE_DRIFT)),
            self._wide_under.setdefault(under, _place(self._wide)),
            self._wide_of_under.setdefault((shape, under), own_here),
            self._wide,
        ]
        is_surprise = self._wide_noise.learn(effects, self._wide, difference)
        self.trials.note(shape, is_surprise or difference < -CHEAPER)
        if not is_surprise:
            self._judge(shape)
        # The machine may have changed since the last plain step.
        for effect in self._plain_effects(num_rows, under):
            effect.variance += effect.drift
        self.bounds.observe_wide(num_rows, self._num_fed(widths), taken_s, under)
        self._forget_estimates()

    def _note_first(self, believed_s: float, taken_s: float) -> None:
        """Set the scale of guesses from the very first step."""
        if self.table.measured[1, 1] == UNSEEN_S:
            self.table.put((1, 1), max(taken_s, UNSEEN_S) * UNSEEN_S / believed_s)
            self._forget_estimates()

    def _take_from_step(self, shape: Shape, width: int, taken_s: float, under: Conditions) -> None:
        """Use the first real step of an unmeasured shape as its measurement."""
        num_rows, on_grid = shape
        shared = self._plain_effect(num_rows, under) + self._wide.mean + _mean(self._wide_under, under)
        error = math.log(taken_s / self.seconds(num_rows, width, under))
        seen_s = self.seconds(num_rows, on_grid, under) * math.exp(error - shared)
        was_guessed = shape in self.table.guesses
        self.table.put(shape, seen_s)
        self._wide_of[shape] = Effect(SEEN_VARIANCE, SHAPE_DRIFT)
        if was_guessed and abs(error) > WRONG:
            self._doubt(shape)
        self._forget_estimates()

    def _judge(self, shape: Shape) -> None:
        """Replace a measured cost that was found to be wrong."""
        own, measured_s = self._wide_of[shape], self.table.measured.get(shape)
        if measured_s and abs(own.mean) >= WRONG:
            self.table.put(shape, measured_s * math.exp(own.mean))
            own.mean = 0.0
            self._doubt(shape)

    def _doubt(self, wrong: Shape) -> None:
        """Doubt the costs of other shapes because one was wrong; after the second, forget those not seen."""
        self._wrong.add(wrong)
        self.trials.doubt()
        if len(self._wrong) >= MAX_WRONG_SHAPES:
            self.table.keep_only(self._wide_of)

    def _forget_estimates(self) -> None:
        self._even_steps: dict[tuple[int, Conditions], Callable[[int], float]] = {}

    def _shape(self, num_rows: int, widest: int) -> Shape:
        """Return the shape under which to learn a step: its widest row, rounded up to the grid."""
        at = bisect_left(self.widths, widest)
        return num_rows, self.widths[at] if at < len(self.widths) else widest

    def _plain_effects(self, num_rows: int, under: Conditions) -> list[Effect]:
        own = OWN_VARIANCE if (num_rows, 1) in self.table.measured else SEEN_VARIANCE
        return [
            self._plain,
            self._plain_under.setdefault(under, _place(self._plain)),
            self._plain_of.setdefault((num_rows, under), Effect(own, OWN_DRIFT)),
        ]

    def _plain_effect(self, num_rows: int, under: Conditions) -> float:
        return self._plain.mean + _mean(self._plain_under, under) + _mean(self._plain_of, (num_rows, under))

    def _num_fed(self, widths: Sequence[int]) -> int:
        """Return the tokens that a step feeds, including padding if rows share a forward pass."""
        return len(widths) * max(widths) if self.batched else sum(widths)

    def _table_s(self, num_rows: int, width: int) -> float:
        """Return the seconds of a step whose rows all have this width, by the table alone."""
        return (
            self.table.seconds(num_rows, width) if self.batched else num_rows * self.table.seconds(1, width)
        )


def _place(shared: Effect) -> Effect:
    """Return the initial effect of new conditions. shared: the effect of all steps."""
    is_first = shared.num_seen < CONFIRMED
    return Effect(FIRST_PLACE_VARIANCE if is_first else PLACE_VARIANCE, PLACE_DRIFT)


def _mean(effects: dict[K, Effect], key: K) -> float:
    found = effects.get(key)
    return found.mean if found else 0.0
