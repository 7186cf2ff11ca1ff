"""Find the request that makes a step over several rows fail, by bisection."""

from collections.abc import Collection, Iterable

from reprise.engine.batch.sequence import Sequence

MAX_EXPONENT = 6
"""A test takes 4 ** n tokens; n is the largest number of earlier bisections of any suspect, up to this."""


class Bisection:
    """The search for the one request among several whose steps fail.

    candidates: the sequences of a failed step; if a single request is at fault, it is among them.
    tested: half of the candidates. No other rows run until each tested one has ended or committed enough
        tokens.

    Requests that took part in earlier bisections are tested for longer. So if only all rows together fail, as
    when memory runs out, the requests finish during the tests instead of gaining one token each.
    """

    def __init__(self, suspects: Iterable[Sequence]) -> None:
        suspects = [s for s in suspects if not s.ended]
        self._num_tokens = 4 ** min(MAX_EXPONENT, max((s.num_bisections for s in suspects), default=0))
        for sequence in suspects:
            sequence.num_bisections += 1
        self._test(suspects)

    @property
    def is_over(self) -> bool:
        """Whether no candidate is left: no single request was at fault."""
        return not self.candidates

    @property
    def has_passed(self) -> bool:
        """Whether every tested sequence has ended or committed enough tokens."""
        return all(s.ended or s.num_answered >= goal for s, goal in self._goals.items())

    def narrow(self, suspects: Collection[Sequence]) -> None:
        """Search on among those tested sequences that another failed step suspects."""
        self._test([s for s in self.tested if s in suspects])

    def clear_tested(self) -> None:
        """Search on among the other candidates, as the tested ones have passed."""
        self._test([s for s in self.candidates if s not in self.tested])

    def _test(self, candidates: Iterable[Sequence]) -> None:
        self.candidates = [s for s in candidates if not s.ended]
        self.tested = self.candidates[: (len(self.candidates) + 1) // 2]
        self._goals = {s: s.num_answered + self._num_tokens for s in self.tested}
