"""All models, loaded or not, and who waits for them; requests and the loop share them under one lock."""

import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

from reprise.config.per_model import Section, settings_of
from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelLoadError
from reprise.engine.interface.models import ModelEntry, ModelUse
from reprise.engine.interface.status import EngineCounts, sum_counts
from reprise.engine.models.catalogue import Catalogue, FoundModel
from reprise.engine.models.served import ServedModel


class KnownModels:
    """All models by name, and who waits for which. Any thread may call its methods.

    settings: for all models. sections: settings of single models, by name. catalogue: the models on disk.

    lock: guards everything here that more than one thread reads or changes.
    wake: set when there is something to do for the thread that owns MLX.
    wanted: models to be loaded, in the order in which they were asked for.
    lacks_memory: whether one of these waits for memory; until it has that, no request is given any model.
    retired: sum of the counts of engines that are gone. is_stopping: whether all requests are refused.
    num_loading_steps: grows with the progress of loads. fault: why the thread that owns MLX died, if it did.
    """

    def __init__(self, settings: Settings, sections: dict[str, Section], catalogue: Catalogue) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.by_name: dict[str, ServedModel] = {}
        self.wanted: deque[ServedModel] = deque()
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.lacks_memory = False
        self.retired = EngineCounts()
        self.is_stopping = False
        self.num_loading_steps = 0
        self.fault: str | None = None
        self._sections = sections

    @property
    def first(self) -> ServedModel:
        """The model that the server started with."""
        with self.lock:
            name = self.settings.model_name
            if name not in self.by_name:
                found = self.catalogue.find(name)
                assert found is not None
                self.note(found)
            return self.by_name[name]

    def settings_of(self, name: str) -> Settings:
        """Return the settings of a model: those of all models, changed by its own section."""
        return settings_of(self.settings, self._sections, name.rpartition(":")[0] or name)

    def keep_s(self, model: ServedModel) -> float:
        """Return for how many seconds a model stays loaded without requests."""
        keep_s = self.settings_of(model.name).idle_unload_s if model.keep_s is None else model.keep_s
        return float("inf") if keep_s is None or keep_s < 0 else keep_s

    def describe(self, model: ServedModel) -> ModelEntry:
        """Describe a model for lists. Called with the lock."""
        return model.entry(self.keep_s(model))

    def list_all(self) -> list[ServedModel]:
        """Return all models that note() has recorded."""
        with self.lock:
            return list(self.by_name.values())

    def find(self, name: str) -> ServedModel | None:
        """Return the model of a name; None if there is none. Reads the disk if the model is not loaded."""
        with self.lock:
            model = self.by_name.get(name)
        if model and (model.engine or model is self.first):
            return model
        found = self.catalogue.find(name)
        with self.lock:
            return self.note(found) if found else None

    def note(self, found: FoundModel) -> ServedModel:
        """Record a model's entry on the disk, and return the model. Called with the lock."""
        of_it = self.settings_of(found.name)
        made = ServedModel(found, of_it.max_context_tokens, of_it.max_images > 0)
        model = self.by_name.setdefault(found.name, made)
        if not model.engine:
            if model.found.folder != found.folder:
                # What was wrong with it may have been mended.
                model.fault = model.info = None
            model.found = found
        return model

    def want(self, model: ServedModel) -> None:
        """Ask the thread that owns MLX to load a model. Called with the lock."""
        if model not in self.wanted:
            self.wanted.append(model)
            self.wake.set()

    def may_use(self, model: ServedModel) -> bool:
        """Return whether a model may be given to a request now. Called with the lock."""
        return model.is_loaded and not self.lacks_memory and not model.leaving

    def use(self, model: ServedModel) -> ModelUse:
        """Count a use of a loaded model, and return it for a request. Called with the lock."""
        assert model.engine is not None
        model.num_uses += 1
        model.used_at = time.monotonic()
        return ModelUse(model.engine, partial(self._end_use, model))

    def give(self, model: ServedModel, future: "Future[ModelUse]") -> None:
        """Set a future to a use of a loaded model, unless it was cancelled. Called with the lock."""
        if future.set_running_or_notify_cancel():
            future.set_result(self.use(model))

    def give_waiting(self) -> None:
        """Give every wanted model that is loaded to all requests that wait for it."""
        with self.lock:
            for model in tuple(self.wanted):
                while model.is_loaded and model.waiting and not model.leaving:
                    self.give(model, model.waiting.popleft())
                # Who came after it failed tries again.
                if not model.waiting and (model.is_loaded or not model.is_answering):
                    self.wanted.remove(model)

    def refuse_waiting(self) -> None:
        """Fail all waits for loads and unloads, because the server is stopping."""
        with self.lock:
            futures: list[Future[Any]] = []
            for model in self.list_all():
                futures += [*model.waiting, *model.leaving]
                model.waiting, model.leaving = deque(), []
            self.wanted.clear()
        refused = ModelLoadError("draining", "the server is stopping")
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(refused)

    def retire(self, model: ServedModel) -> None:
        """Forget a model's engine, and add its counts to `retired`."""
        with self.lock:
            if model.engine:
                self.retired = sum_counts([self.retired, model.engine.counts()])
            model.engine = None

    def _end_use(self, model: ServedModel, use: ModelUse) -> None:
        with self.lock:
            model.num_uses -= 1
            model.used_at, model.keep_s = time.monotonic(), use.keep_s
        self.wake.set()
