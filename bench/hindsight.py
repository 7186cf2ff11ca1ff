"""What a drafter could have gained on an answer that is known now, with the best width at every step."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.policies import LIMIT, Always, Chooser, Hindsight, replay
from drafters.base import Drafter, SequenceStart
from drafters.ngram_mod import NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.ngram_simple import NgramSimpleDrafter
from drafters.suffix import SuffixDrafter
from engine.speculative.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """The costs of one row that an engine works with, a plain step being 1."""

    costs: StepCosts
    name: str = "measured"

    def cost(self, width: int) -> float:
        """In plain steps."""
        return self.costs.seconds(1, max(1, width)) / self.costs.seconds(1, 1)


def best_speedup(
    costs: StepCosts, draft_type: str, prompt: Sequence[int], answer: Sequence[int], widest: int = LIMIT + 1
) -> float:
    """Plain cost over cost of an answer whose every step had the best width for what was drafted."""
    return _speedup(costs, draft_type, prompt, answer, Hindsight(widest - 1))


def best_width_speedup(
    costs: StepCosts, draft_type: str, prompt: Sequence[int], answer: Sequence[int], widest: int = LIMIT + 1
) -> float:
    """The same where all drafts of the answer had one width: the best one for it, of those measured."""
    widths = sorted({width for width in costs.widths if width < widest} | {widest})
    limits = [Always(width - 1) for width in widths]
    return max(_speedup(costs, draft_type, prompt, answer, limit) for limit in limits)


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
