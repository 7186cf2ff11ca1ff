"""When a width that is believed not to pay is tried all the same, as the belief may be wrong."""

from dataclasses import dataclass

from reprise.engine.speculative.costs.cost_table import Shape

MEASURED_PATIENCE = 128
"""Chances that a width of measured cost lets pass before it is tried."""

DOUBTED_PATIENCE = 16
"""The same where the cost is a guess, or where measured costs of other widths were found to be wrong."""

MAX_PATIENCE = 4096
"""The same after many trials that showed what was believed."""


@dataclass(slots=True)
class _Waiting:
    patience: int
    num_missed: int = 0


class Trials:
    """Counts, for each shape of step, the chances at which it would pay if it cost less than believed.

    A trial that confirms the belief doubles the chances until the next; after any other, the next is at once.
    """

    def __init__(self) -> None:
        self._waiting: dict[Shape, _Waiting] = {}

    def is_due(self, shape: Shape, is_guess: bool) -> bool:
        """Count a chance to try a shape; return whether to try it now.

        is_guess: whether the cost of the shape was neither measured nor seen.
        """
        waiting = self._waiting.get(shape)
        if waiting is None:
            # What nobody ever saw is tried at its first chance.
            waiting = self._waiting[shape] = _Waiting(0 if is_guess else MEASURED_PATIENCE)
        waiting.num_missed += 1
        return waiting.num_missed > waiting.patience

    def note(self, shape: Shape, is_news: bool) -> None:
        """Count a real step of a shape. is_news: whether it took less than believed, or far more."""
        if waiting := self._waiting.get(shape):
            if is_news:
                waiting.patience = 0
            elif waiting.num_missed > waiting.patience:
                waiting.patience = min(MAX_PATIENCE, max(DOUBTED_PATIENCE, 2 * waiting.patience))
            waiting.num_missed = 0

    def doubt(self) -> None:
        """Shorten the wait of all shapes for their next trial, since beliefs were found to be wrong."""
        for waiting in self._waiting.values():
            waiting.patience = min(waiting.patience, DOUBTED_PATIENCE)
