"""The one model of an engine, which is there from start to end."""

from collections.abc import Callable
from functools import partial

from engine.model.loading import ModelError, StartProgress
from engine.models.known import KnownModels
from engine.models.served import ServedModel

DAY_S = 86_400.0


class GivenModel:
    """Loads the first of the known models, whose engine is made already, and no other.

    on_death: called with the fault's text if the model's engine dies. serve: see Loading in loop.py.
    """

    def __init__(self, known: KnownModels, on_death: Callable[[str], None]) -> None:
        self.serve: Callable[[float], None] = lambda _: None
        self._known, self._on_death = known, on_death

    def begin(self, on_progress: StartProgress | None) -> None:
        """Load the model. Raises ModelError."""
        model = self._known.first
        assert model.engine
        model.engine.load(partial(self._note_progress, on_progress))
        model.is_loaded = True

    def _note_progress(self, on_progress: StartProgress | None, stage: str, share: float) -> None:
        if self._known.is_stopping:
            raise ModelError("loading was interrupted")
        if on_progress:
            on_progress(stage, share)

    def advance(self) -> None:
        """Do nothing: no other model is loaded, and this one stays."""

    due_in_s = DAY_S

    def lose(self, model: ServedModel) -> None:
        """Stop: there is nothing without the model."""
        assert model.engine
        if self._known.fault is None:
            self._known.fault = model.engine.lifecycle.fault
            self._known.is_stopping = True
            self._on_death(str(self._known.fault))

    def end(self) -> None:
        """Do nothing: the model saves what is its own."""
