"""Define StepError, which every failed step raises."""

from collections.abc import Iterable

from reprise.engine.batch.sequence import Sequence


class StepError(Exception):
    """A step failed, and the caches of all rows in the batch are lost with it.

    suspects: the sequences among which one may be at fault; empty if no sequence is.
    fault: the exception that made the step fail.
    """

    def __init__(self, suspects: Iterable[Sequence], fault: Exception) -> None:
        super().__init__(str(fault))
        self.suspects = list(suspects)
        self.fault = fault
