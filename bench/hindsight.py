"""Compute the best speedup that a drafter could have reached on a known answer, with the best widths."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.replay.policies import LIMIT, Always, Chooser, Hindsight, replay
from drafters.base import Drafter, SequenceStart
from drafters.ngram_mod import NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.ngram_simple import NgramSimpleDrafter
from drafters.suffix import SuffixDrafter
from engine.speculative.costs.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """An engine's step costs for one row, relative to a plain step."""

    costs: StepCosts
    name: str = "measured"

    def cost(self, width: int) -> float:
        """Return the cost of a step of this width, in plain steps."""
        return self.costs.seconds(1, max(1, width)) / self.costs.seconds(1, 1)


def best_speedup(
    costs: StepCosts, draft_type: str, prompt: Sequence[int], answer: Sequence[int], widest: int = LIMIT + 1
) -> float:
    """Return the speedup of an answer if every step used the best width for its draft."""
    return _speedup(costs, draft_type, prompt, answer, Hindsight(widest - 1))


def best_width_speedup(
    costs: StepCosts, draft_type: str, prompt: Sequence[int], answer: Sequence[int], widest: int = LIMIT + 1
) -> float:
    """Return the speedup of an answer if all steps used the same width: the best of the measured widths."""
    widths = sorted({width for width in costs.widths if width < widest} | {widest})
    choosers = [Always(width - 1) for width in widths]
    return max(_speedup(costs, draft_type, prompt, answer, chooser) for chooser in choosers)


def _speedup(
    costs: StepCosts, draft_type: str, prompt: Sequence[int], answer: Sequence[int], chooser: Chooser
) -> float:
    outcome = replay(_drafters(draft_type), chooser, MeasuredCurve(costs), SequenceStart(0, prompt), answer)
    return outcome.num_tokens / outcome.cost


def _drafters(draft_type: str) -> list[Drafter]:
    if draft_type == "ngram-simple":
        return [NgramSimpleDrafter()]
    if draft_type == "ngram-mod":
        return [NgramModDrafter(NgramModTables("hindsight"))]
    return [SuffixDrafter(0)]
