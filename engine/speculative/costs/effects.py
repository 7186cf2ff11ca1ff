"""Learn additive effects on the logarithm of a cost: a Kalman filter that takes them to be independent.

The difference between a step's real and expected cost is divided among the effects by how uncertain each is.
A difference that noise does not explain teaches nothing the first time, since it may be a pause of the
machine; the second time it is learned in full.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_DIFFERENCE = 0.4
"""Difference from which on it is a surprise if what it may be due to is not confirmed."""

MIN_NOISE = 0.3**2
"""Minimum variance of a step's seconds, on a log scale, when nothing changes."""

NOISE_RATE = 0.03
"""Share of the difference by which one step corrects that variance."""

SURPRISE = 3.0
"""Standard deviations from which on a difference counts as a surprise."""

CONFIRMED = 3
"""Steps after which an effect is no longer what a surprise is due to."""


@dataclass(slots=True)
class Effect:
    """One effect on the logarithm of a cost: its estimate, and how uncertain that is.

    variance: the estimate's variance, >= 0. drift: what each step adds to the variance, as effects change.
    num_seen: steps from which the effect was learned.
    surprise: the last step's difference if that was a surprise which this effect may have caused; else 0.
    """

    variance: float
    drift: float
    mean: float = 0.0
    num_seen: int = 0
    surprise: float = 0.0


class Noise:
    """How much steps vary when nothing changes: more on a busy machine.

    variance: of the logarithm of a step's seconds.
    """

    def __init__(self) -> None:
        self.variance = MIN_NOISE

    def learn(self, effects: Sequence[Effect], shared: Effect, difference: float) -> bool:
        """Correct the effects and the noise by one step; return whether the step was a surprise.

        effects: those that apply to the step. A surprise is due to the first that few steps have confirmed.
        shared: the effect that applies to all steps. If all are confirmed, a surprise is due to this one.
        difference: the logarithm of the step's real seconds over the expected ones.
        """
        for each in effects:
            each.variance += each.drift
        known = sum([each.variance for each in effects])
        square = difference * difference
        doubted = next((each for each in effects if each.num_seen < CONFIRMED), shared)
        limit = SURPRISE * math.sqrt(known + self.variance)
        if doubted.num_seen < CONFIRMED:
            limit = min(limit, MAX_DIFFERENCE)
        if is_surprise := abs(difference) > limit:
            if doubted.surprise * difference > 0:
                known += square - doubted.variance
                doubted.variance, doubted.surprise = square, 0.0
                self._correct(effects, difference, known + self.variance)
            else:
                doubted.surprise = difference
        else:
            doubted.surprise = 0.0
            # Short pauses are frequent, and say nothing about other steps.
            limit = math.sqrt(known + self.variance)
            difference = max(-limit, min(limit, difference))
            self._correct(effects, difference, known + self.variance)
            noise = self.variance + NOISE_RATE * (difference * difference - known - self.variance)
            self.variance = max(MIN_NOISE, noise)
        for each in effects:
            each.num_seen += 1
        return is_surprise

    def _correct(self, effects: Sequence[Effect], difference: float, total: float) -> None:
        for each in effects:
            share = each.variance / total
            each.mean += share * difference
            each.variance *= 1 - share
