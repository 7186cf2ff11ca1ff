"""The models that a pool knows, loaded or not, and what requests and its thread agree on under one lock."""

import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import partial

from config.per_model import Section, settings_of
from config.settings import Settings
from engine.interface.models import ModelEntry
from engine.interface.status import EngineCounts
from engine.pool.catalogue import Catalogue, FoundModel
from engine.pool.model import ModelUse, PooledModel
from engine.stats import sum_counts


class PooledModels:
    """All models by name, and who waits for which. Any thread may call its methods.

    settings, sections: those of all models, and of single ones. catalogue: the models that there are.

    lock: guards everything here that more than one thread reads or changes.
    wake: set when there is something to do for the thread that owns MLX.
    wanted: models to be loaded, in the order in which they were asked for.
    lacks_memory: one of them waits for memory; until it has it, no model is given to any request.
    retired: counts of engines that are gone. is_stopping: no request is taken any more.
    fault: why the thread died, if it did.
    """

    def __init__(self, settings: Settings, sections: dict[str, Section], catalogue: Catalogue) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.by_name: dict[str, PooledModel] = {}
        self.wanted: deque[PooledModel] = deque()
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.lacks_memory = False
        self.retired = EngineCounts()
        self.is_stopping = False
        self.fault: str | None = None
        self._sections = sections

    @property
    def first(self) -> PooledModel:
        """The model that the server started with."""
        with self.lock:
            name = self.settings.model_name
            if name not in self.by_name:
                found = self.catalogue.find(name)
                assert found is not None
                self.note(found)
            return self.by_name[name]

    def settings_of(self, name: str) -> Settings:
        """Return the settings for a model."""
        return settings_of(self.settings, self._sections, name.rpartition(":")[0] or name)

    def keep_s(self, model: PooledModel) -> float:
        """Return for how many seconds a model stays without requests."""
        keep_s = self.settings_of(model.name).idle_unload_s if model.keep_s is None else model.keep_s
        return float("inf") if keep_s is None or keep_s < 0 else keep_s

    def describe(self, model: PooledModel) -> ModelEntry:
        """Describe a model. Called with the lock."""
        return model.entry(self.keep_s(model))

    def list_all(self) -> list[PooledModel]:
        """Return all models that have been noted."""
        with self.lock:
            return list(self.by_name.values())

    def find(self, name: str) -> PooledModel | None:
        """Return a model; None if there is none of that name. Reads the disk if it is not loaded."""
        with self.lock:
            model = self.by_name.get(name)
        if model and (model.engine or model is self.first):
            return model
        found = self.catalogue.find(name)
        with self.lock:
            return self.note(found) if found else None

    def note(self, found: FoundModel) -> PooledModel:
        """Record a model's entry on the disk, and return the model. Called with the lock."""
        limit = self.settings_of(found.name).max_context_tokens
        model = self.by_name.setdefault(found.name, PooledModel(found, limit))
        if not model.engine:
            if model.found.folder != found.folder:
                # What was wrong with it may have been mended.
                model.fault = model.info = None
            model.found = found
        return model

    def want(self, model: PooledModel) -> None:
        """Ask the thread to load a model. Called with the lock."""
        if model not in self.wanted:
            self.wanted.append(model)
            self.wake.set()

    def give(self, model: PooledModel, future: "Future[ModelUse]") -> None:
        """Give a loaded model to who asked for it, unless that is no longer wanted."""
        assert model.engine is not None
        if future.set_running_or_notify_cancel():
            model.num_uses += 1
            future.set_result(ModelUse(model.engine, partial(self._end_use, model)))

    def retire(self, model: PooledModel) -> None:
        """Forget a model's engine; its counts stay."""
        with self.lock:
            if model.engine:
                self.retired = sum_counts([self.retired, model.engine.counts()])
            model.engine = None

    def _end_use(self, model: PooledModel, use: ModelUse) -> None:
        with self.lock:
            model.num_uses -= 1
            model.used_at, model.keep_s = time.monotonic(), use.keep_s
        self.wake.set()
