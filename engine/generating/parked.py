"""Keep the requests of a model whose weights are not in memory, until they are again."""

from collections import deque
from collections.abc import Sequence as SequenceOf

from engine.batch.sequence import Sequence
from engine.interface.events import Failed


class ParkedWorker:
    """Takes the place of a model's worker while its weights are not in memory: its sequences wait.

    queue: itself, as it does nothing but wait. waiting: in the order of their submission.
    """

    has_work, is_blocked, num_progressed = False, False, 0
    running: SequenceOf[Sequence] = ()

    def __init__(self) -> None:
        self.waiting: deque[Sequence] = deque()

    @property
    def queue(self) -> "ParkedWorker":
        """Where the sequences wait."""
        return self

    @property
    def live(self) -> list[Sequence]:
        """Every sequence that has not had its terminal event."""
        return [s for s in self.waiting if not s.ended]

    def submit(self, sequence: Sequence) -> None:
        """Let a sequence wait."""
        self.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence, and forget all that have ended."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                sequence.fail(Failed("cancelled", "the client left"))
        self.waiting = deque(self.live)

    def end_waiting(self, failed: Failed) -> None:
        """End all sequences."""
        for sequence in self.live:
            sequence.fail(failed)
        self.waiting.clear()

    def step(self) -> None:
        """Do nothing."""

    def measure_costs(self) -> bool:
        """Measure nothing."""
        return False
