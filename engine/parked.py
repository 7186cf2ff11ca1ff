"""Keep the requests of a model whose weights are not in memory, until they are again."""

from collections import deque

from engine.interface.events import Failed
from engine.sequence.sequence import Sequence


class ParkedWorker:
    """Takes the place of a model's worker while its weights are not in memory: its sequences wait.

    queue: itself, as it does nothing but wait. waiting: in the order of their submission.
    """

    has_work, plain_s = False, 0.0

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
        """End a sequence."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                sequence.fail(Failed("cancelled", "the client left"))

    def step(self) -> None:
        """Forget the sequences that have ended."""
        self.waiting = deque(self.live)

    def measure_costs(self) -> bool:
        """Measure nothing."""
        return False
