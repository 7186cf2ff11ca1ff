"""Give an engine with one model the methods of an engine with several."""

from concurrent.futures import Future
from typing import Any

from reprise.engine.interface.errors import ModelLoadError
from reprise.engine.interface.models import ModelEntry, ModelUse


class OneModel:
    """The methods of ModelPool about models, for an engine whose one model is loaded from start to end.

    is_fixed: whether requests cannot ask for other models, nor have a model loaded or unloaded.
    """

    is_fixed = True

    @property
    def first_name(self: Any) -> str:
        """The model's name."""
        name: str = self.info.name
        return name

    def entries(self: Any) -> list[ModelEntry]:
        """Describe the engine's models: its only one."""
        return [_entry_of(self)]

    def loaded_entries(self: Any) -> list[ModelEntry]:
        """Describe the loaded models: the engine's only one."""
        return [_entry_of(self)]

    def find(self: Any, name: str) -> ModelEntry | None:
        """Describe the model if it has this name; else return None."""
        return _entry_of(self) if name == self.info.name else None

    def use_loaded(self: Any, name: str) -> ModelUse | None:
        """Return a use of the model if it has this name; else None."""
        return ModelUse(self, lambda _: None) if name == self.info.name else None

    def acquire(self, name: str) -> "Future[ModelUse]":
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


def _entry_of(engine: Any) -> ModelEntry:
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
