"""Who breaks a step over several rows: half of the suspects is tried by itself, then half of what is left."""

from collections.abc import Collection, Iterable

from engine.sequence import Sequence

MAX_PATIENCE = 6
"""A sequence is tried for 4 ** n tokens, n being the inquests it has been in before, at most so many."""


class Bisection:
    """The search for the one request that breaks steps.

    candidates: a step over them failed, and one of them is to blame, if it is the fault of any single one.
    trial: half of them, which run with nobody beside them until each has ended, or has committed as many
        more tokens as it is to show.

    A request that had part in inquests before is tried for longer: where only all rows together fail, as
    for want of memory, they come to their ends in trials, not one token an inquest.
    """

    def __init__(self, suspects: Iterable[Sequence]) -> None:
        suspects = [s for s in suspects if not s.ended]
        self._num_tokens = 4 ** min(MAX_PATIENCE, max((s.num_bisections for s in suspects), default=0))
        for sequence in suspects:
            sequence.num_bisections += 1
        self._try(suspects)

    @property
    def is_over(self) -> bool:
        """Whether nobody is left to be tried: then the fault was of no single one."""
        return not self.candidates

    @property
    def has_passed(self) -> bool:
        """Whether all on trial have shown what they are to show."""
        return all(s.ended or s.num_answered >= goal for s, goal in self._goals.items())

    def narrow(self, suspects: Collection[Sequence]) -> None:
        """A step over these failed; those of them on trial are the candidates now."""
        self._try([s for s in self.trial if s in suspects])

    def acquit(self) -> None:
        """The trial was passed: the others are the candidates now."""
        self._try([s for s in self.candidates if s not in self.trial])

    def _try(self, candidates: Iterable[Sequence]) -> None:
        self.candidates = [s for s in candidates if not s.ended]
        self.trial = self.candidates[: (len(self.candidates) + 1) // 2]
        self._goals = {s: s.num_answered + self._num_tokens for s in self.trial}
