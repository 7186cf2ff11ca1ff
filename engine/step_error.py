"""StepError, the one way in which a failed step is reported."""

from collections.abc import Iterable

from engine.sequence import Sequence


class StepError(Exception):
    """A step failed, and the caches of all rows in the batch are lost with it.

    suspects: the sequences of which one may be at fault; empty if the fault lies with no sequence.
    fault: what was raised.
    """

    def __init__(self, suspects: Iterable[Sequence], fault: Exception) -> None:
        super().__init__(str(fault))
        self.suspects = list(suspects)
        self.fault = fault
