"""The cost of a step in seconds: measured in advance, and learned from the steps that the server takes.

Plain and verification steps are learned apart. What drafting costs is judged against real plain steps, so
plain steps are taken now and then even while drafts pay: is_plain_due() says when.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from engine.speculative.costs.conditions import USUAL, Conditions

MAX_SURPRISE = math.log(1.5)
"""Maximum difference that a step can teach, as the logarithm of observed over expected cost."""

SHAPE_DECAY, PLACE_DECAY, ALL_DECAY, WIDTH_DECAY = 0.9, 0.95, 0.98, 0.95
"""Factors on the weight of an observed step at each later one: of its shape, its conditions, and all."""

PRIOR_STEPS = 1.0
"""The more general estimate counts as much as this many observed steps."""

RECENT_STEPS = 4
"""Observed verification steps of a shape that bound its cost from above."""

RECENT_PLAIN_STEPS = 5
"""Observed plain steps whose median bounds their cost from below."""

PLAIN_AFTER_STEPS = (8, 128)
"""Verification steps after which plain steps are due: before any was observed under the same conditions, and
after that."""

WIDTH_PRIOR_STEPS = 8.0
"""The costs measured in advance are believed for as many steps to say how widths compare: steps vary."""

Table = Mapping[tuple[int, int], float]
"""(rows, width) -> seconds. A full grid: every width is measured for every number of rows."""


class StepCosts:
    """The expected seconds of a step by its rows, widths and conditions, and bounds on them.

    Costs measured in advance are interpolated linearly on their grid, and extrapolated beyond it by the last
    slope. What is learned are factors on them. Under conditions that were not observed, the factor of plain
    steps is that of plain steps in general; that of verification steps follows the plain ones. What a width
    is known for is its difference from all widths, so a machine that slows down or recovers does so for all.

    table: the costs measured in advance, including width 1.
    batched: whether all rows share a forward pass; otherwise each row has its own, and costs add up.
    is_learned: whether observed steps change the costs.
    Raises ValueError if the table is not a full grid of positive numbers.
    """

    def __init__(self, table: Table, batched: bool = True, is_learned: bool = True) -> None:
        self.batched = batched
        self.is_learned = is_learned
        self.replace_table(table)

    def replace_table(self, table: Table) -> None:
        """Replace the costs measured in advance, and forget what was learned as factors on the old ones."""
        self.rows = sorted({rows for rows, _ in table})
        self.widths = sorted({width for _, width in table})
        full = len(table) == len(self.rows) * len(self.widths)
        if not table or not full or self.widths[0] != 1 or not all(0 < s < math.inf for s in table.values()):
            raise ValueError(
                "costs must be positive seconds for a full grid of rows and widths, starting at width 1"
            )
        self._table = dict(table)
        self._plain = _Factor(ALL_DECAY)
        self._wide = _Factor(ALL_DECAY)
        self._plain_under: dict[Conditions, _Factor] = {}
        self._wide_under: dict[Conditions, _Factor] = {}
        self._plain_of: dict[tuple[int, Conditions], _PlainSteps] = {}
        self._wide_of: dict[tuple[int, int, Conditions], _Factor] = {}
        # By the tokens that the steps fed.
        self._wide_steps: dict[tuple[int, Conditions], dict[int, _WideSteps]] = {}
        self._interpolated: dict[tuple[int, int], float] = {}
        self._forget_estimates()

    def seconds(self, num_rows: int, width: int, under: Conditions = USUAL) -> float:
        """Return the expected seconds of a step whose rows all have the same width."""
        return self.even_steps(num_rows, under)(width)

    def even_steps(self, num_rows: int, under: Conditions = USUAL) -> Callable[[int], float]:
        """Return a function: the expected seconds of a step whose rows all have this width.

        It holds until the next step is observed.
        """
        if (found := self._even_steps.get((num_rows, under))) is None:
            plain, prior = self._plain_factor(num_rows, under), self._wide_prior(num_rows, under)

            @cache
            def step_s(width: int) -> float:
                key = self._wide_key(num_rows, width, under)
                factor = plain if width == 1 else self._wide_factor(key, prior)
                return self._even_s(num_rows, width) * math.exp(factor)

            found = self._even_steps[num_rows, under] = step_s
        return found

    def step_s(self, widths: Sequence[int], under: Conditions = USUAL) -> float:
        """Return the expected seconds of a step whose rows have these widths."""
        widest = max(widths)
        if self.batched or len(widths) == 1:
            return self.seconds(len(widths), widest, under)
        share = self._sum_s(widths) / self._even_s(len(widths), widest)
        return share * self.seconds(len(widths), widest, under)

    def most_s(self, widths: Sequence[int], under: Conditions = USUAL) -> float:
        """Return the maximum seconds that a verification step may take.

        That follows from real steps alone, not from the costs measured in advance: a plain step for each
        token, or the price of a token in a step that was observed, and a plain step besides; and no more
        than a larger step took. Of observed steps the dearest of the latest counts, except for a single
        outlier. Never less than what is expected.
        """
        expected_s = self.step_s(widths, under)
        if not self.is_learned:
            return expected_s
        num_rows, num_fed = len(widths), self._num_fed(widths)
        plain_s = max(self.seconds(num_rows, 1, under), self.least_plain_s(num_rows, under) or 0.0)
        most_s = (num_fed / num_rows + 1) * plain_s
        for fed, seen in self._wide_steps.get((num_rows, under), {}).items():
            most_s = min(most_s, seen.most_s if fed >= num_fed else seen.most_s * num_fed / fed + plain_s)
        return max(expected_s, most_s)

    def least_plain_s(self, num_rows: int, under: Conditions = USUAL) -> float | None:
        """Return the minimum seconds of a plain step, by real ones; None if none was observed that tells.

        The median of the latest steps counts, unless a verification step was cheaper since. Fewer rows,
        shorter rows or simpler sampling only take less, so steps with those tell too.
        """
        if not self.is_learned:
            return self.seconds(num_rows, 1, under)
        key = num_rows, under
        if key not in self._least:
            told = [
                steps.least_s
                for (rows, there), steps in self._plain_of.items()
                if rows <= num_rows and there.context <= under.context and there.sampling <= under.sampling
            ]
            self._least[key] = max((each for each in told if each is not None), default=None)
        return self._least[key]

    def min_ratio(self, num_rows: int, under: Conditions = USUAL) -> float:
        """Return the expected cost of the cheapest verification step, relative to a plain step."""
        key = num_rows, under
        if (found := self._min_ratios.get(key)) is None:
            step_s = self.even_steps(num_rows, under)
            cheapest_s = min([step_s(width) for width in self.widths if width > 1], default=0.0)
            found = self._min_ratios[key] = cheapest_s / step_s(1)
        return found

    def is_plain_due(self, num_rows: int, under: Conditions) -> bool:
        """Whether a plain step should be taken next, because what it costs is not known well enough."""
        if not self.is_learned:
            return False
        steps = self._plain_of.get((num_rows, under))
        if steps is None or not steps.recent_s:
            if self.least_plain_s(num_rows, under) is None:
                return True
            return steps is not None and steps.num_wide >= PLAIN_AFTER_STEPS[0]
        return steps.num_wide >= PLAIN_AFTER_STEPS[1]

    def observe_plain(self, num_rows: int, taken_s: float, under: Conditions = USUAL) -> None:
        """Learn from a plain step that was dispatched while another was in flight."""
        if not self.is_learned:
            return
        known = self._plain_factor(num_rows, under)
        seen = self._surprising(taken_s, self._even_s(num_rows, 1), known)
        steps = self._steps(num_rows, under)
        steps.factor.learn(seen)
        steps.recent_s.append(taken_s)
        steps.num_wide, steps.least_wide_s = 0, math.inf
        self._plain_under.setdefault(under, _Factor(PLACE_DECAY)).learn(seen)
        self._plain.learn(seen)

    def observe_wide(self, widths: Sequence[int], taken_s: float, under: Conditions = USUAL) -> None:
        """Learn from a verification step."""
        if not self.is_learned:
            return
        num_rows, base_s = len(widths), self._sum_s(widths)
        key = self._wide_key(num_rows, max(widths), under)
        known = self._wide_factor(key, self._wide_prior(num_rows, under))
        seen = self._surprising(taken_s, base_s, known)
        beside_plain = seen - self._plain_factor(num_rows, under)
        self._wide_under.setdefault(under, _Factor(PLACE_DECAY)).learn(beside_plain)
        self._wide.learn(beside_plain)
        beside_others = seen - self._wide_prior(num_rows, under)
        self._wide_of.setdefault(key, _Factor(WIDTH_DECAY)).learn(beside_others)
        observed = self._wide_steps.setdefault((num_rows, under), {})
        observed.setdefault(self._num_fed(widths), _WideSteps()).recent_s.append(taken_s)
        steps = self._steps(num_rows, under)
        steps.num_wide += 1
        # No plain step can have taken longer than this one did.
        steps.least_wide_s = min(steps.least_wide_s, taken_s)

    def _steps(self, num_rows: int, under: Conditions) -> "_PlainSteps":
        return self._plain_of.setdefault((num_rows, under), _PlainSteps())

    def _surprising(self, taken_s: float, base_s: float, known: float) -> float:
        """Return the logarithm of the observed factor, as far as a single step is believed."""
        surprise = math.log(max(taken_s, 1e-9) / base_s) - known
        self._forget_estimates()
        return known + max(-MAX_SURPRISE, min(MAX_SURPRISE, surprise))

    def _forget_estimates(self) -> None:
        self._even_steps: dict[tuple[int, Conditions], Callable[[int], float]] = {}
        self._min_ratios: dict[tuple[int, Conditions], float] = {}
        self._least: dict[tuple[int, Conditions], float | None] = {}

    def _wide_key(self, num_rows: int, widest: int, under: Conditions) -> tuple[int, int, Conditions]:
        """Return what a verification step is learned under: its widest row counts, rounded up to the grid."""
        at = bisect_left(self.widths, widest)
        return num_rows, self.widths[at] if at < len(self.widths) else widest, under

    def _plain_factor(self, num_rows: int, under: Conditions) -> float:
        general = self._plain.value(0.0)
        if there := self._plain_under.get(under):
            general = there.value(general)
        steps = self._plain_of.get((num_rows, under))
        return steps.factor.value(general) if steps else general

    def _wide_prior(self, num_rows: int, under: Conditions) -> float:
        """Return the factor of verification steps of these rows, by the plain ones and all other steps."""
        general = self._wide.value(0.0)
        if there := self._wide_under.get(under):
            general = there.value(general)
        return self._plain_factor(num_rows, under) + general

    def _wide_factor(self, key: tuple[int, int, Conditions], prior: float) -> float:
        seen = self._wide_of.get(key)
        return prior + seen.value(0.0, WIDTH_PRIOR_STEPS) if seen else prior

    def _num_fed(self, widths: Sequence[int]) -> int:
        """Return the tokens that a step feeds, with the padding of rows that share a forward pass."""
        return len(widths) * max(widths) if self.batched else sum(widths)

    def _sum_s(self, widths: Sequence[int]) -> float:
        """Return what steps with these widths cost by the table."""
        if self.batched:
            return self._at(len(widths), max(widths))
        return sum(self._at(1, width) for width in widths)

    def _even_s(self, num_rows: int, width: int) -> float:
        return self._at(num_rows, width) if self.batched else num_rows * self._at(1, width)

    def _at(self, rows: int, width: int) -> float:
        if (found := self._interpolated.get((rows, width))) is None:
            found = self._interpolated[rows, width] = self._interpolate(rows, width)
        return found

    def _interpolate(self, rows: int, width: int) -> float:
        low, high, part = _locate(self.rows, rows)
        at_low, at_high = self._at_width(low, width), self._at_width(high, width)
        return max(at_low + part * (at_high - at_low), 1e-9)

    def _at_width(self, rows: int, width: int) -> float:
        low, high, part = _locate(self.widths, width)
        return self._table[rows, low] + part * (self._table[rows, high] - self._table[rows, low])


class _Factor:
    """A learned factor on a cost, as a logarithm: a decayed mean over observed steps."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._total = 0.0
        self._weight = 0.0

    def learn(self, seen: float) -> None:
        """Learn from a step with this factor."""
        self._total = self._decay * self._total + seen
        self._weight = self._decay * self._weight + 1.0

    def value(self, prior: float, prior_steps: float = PRIOR_STEPS) -> float:
        """Return the factor. prior: the more general estimate, which counts as much as prior_steps."""
        return (self._total + prior_steps * prior) / (self._weight + prior_steps)


class _PlainSteps:
    """The plain steps of one number of rows under the same conditions.

    recent_s: seconds of the latest. num_wide, least_wide_s: the verification steps since the last one, and
    the seconds of the cheapest of them.
    """

    def __init__(self) -> None:
        self.factor = _Factor(SHAPE_DECAY)
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


def _locate(grid: list[int], x: int) -> tuple[int, int, float]:
    """Return two neighboring grid points and the position of x between them, in [0, 1] within the grid."""
    if len(grid) == 1:
        return grid[0], grid[0], 0.0
    at = min(max(bisect_left(grid, x), 1), len(grid) - 1)
    low, high = grid[at - 1], grid[at]
    return low, high, (x - low) / (high - low)
