"""Describe the one model of an engine as one of several are described."""

from concurrent.futures import Future
from typing import Any, Protocol

from engine.interface.errors import ModelLoadError
from engine.interface.models import ModelEntry, ModelInfo
from engine.interface.status import EngineStatus


class Describable(Protocol):
    """An engine with one model."""

    @property
    def info(self) -> ModelInfo:
        """The model."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    def status(self) -> EngineStatus:
        """Return the present state."""


class UseOfOne:
    """A request's use of the one model. keep_s: of no effect, as it stays."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.keep_s: float | None = None

    def end(self) -> None:
        """Do nothing: the model stays."""


class OneModel:
    """What an engine says of its one model, which is there from start to end.

    is_fixed: whether requests cannot ask for other models, or for one to be loaded or unloaded.
    """

    is_fixed = True

    @property
    def first_name(self: Describable) -> str:
        """The model's name."""
        return self.info.name

    def entries(self: Describable) -> list[ModelEntry]:
        """Describe the model."""
        return [_entry_of(self)]

    def loaded_entries(self: Describable) -> list[ModelEntry]:
        """Describe the model."""
        return [_entry_of(self)]

    def find(self: Describable, name: str) -> ModelEntry | None:
        """Describe the model; None for any other."""
        return _entry_of(self) if name == self.info.name else None

    def use_loaded(self: Describable, name: str) -> UseOfOne | None:
        """Return a use of the model; None for any other."""
        return UseOfOne(self) if name == self.info.name else None

    def acquire(self, name: str) -> "Future[Any]":
        """Raise ModelLoadError: no other model can be loaded."""
        raise _fixed(name)

    def unload(self, name: str) -> "Future[None]":
        """Raise ModelLoadError: the model stays."""
        raise _fixed(name)

    def pull(self, name: str, _report: Any) -> ModelEntry:
        """Raise ModelLoadError: no other model could be used."""
        raise _fixed(name)


def _fixed(name: str) -> ModelLoadError:
    return ModelLoadError("not_loadable", f"there is one model, from start to end, and no {name}")


def _entry_of(engine: Describable) -> ModelEntry:
    info, status, markers = engine.info, engine.status(), engine.tokenizer.markers
    return ModelEntry(
        name=info.name,
        state="loaded",
        size_bytes=info.weight_bytes,
        context_tokens=info.context_tokens,
        num_running=status.num_running,
        num_waiting=status.num_waiting,
        num_loads=1,
        info=info,
        can_call=markers.can_call,
        can_think=markers.can_think,
        can_infill=engine.tokenizer.fim is not None,
        vision=info.vision,
        tool_format=markers.format_name,
    )
