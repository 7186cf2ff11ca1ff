"""Keep the requests of an unloaded model until its weights are in memory again."""

from collections import deque
from collections.abc import Sequence as SequenceOf

from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.events import Failed


class ParkedWorker:
    """Takes the place of a model's worker while its weights are not in memory: its sequences wait.

    queue: this object, which stands in for a Worker's queue. waiting: sequences in the order of submission.
    """

    has_work, is_blocked, num_progressed = False, False, 0
    running: SequenceOf[Sequence] = ()

    def __init__(self) -> None:
        self.waiting: deque[Sequence] = deque()

    @property
    def queue(self) -> "ParkedWorker":
        """This object, in the place of a Worker's request queue."""
        return self

    @property
    def live(self) -> list[Sequence]:
        """Every sequence that has not had its terminal event."""
        return [s for s in self.waiting if not s.ended]

    def submit(self, sequence: Sequence) -> None:
        """Add a sequence to those that wait for the model."""
        self.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End the sequence of this request, and forget all sequences that have ended."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                sequence.fail(Failed("cancelled", "the client left"))
        self.waiting = deque(self.live)

    def end_waiting(self, failed: Failed) -> None:
        """End all waiting sequences with this failure."""
        for sequence in self.live:
            sequence.fail(failed)
        self.waiting.clear()

    def step(self) -> None:
        """Do nothing."""

    def measure_costs(self) -> bool:
        """Measure nothing."""
        return False
