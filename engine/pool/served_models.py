"""All models, loaded or not, and the requests that wait for them, under one lock."""

import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any

from reprise.config.per_model import Section, settings_of
from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelLoadError
from reprise.engine.interface.events import Failed
from reprise.engine.interface.models import ModelEntry, ModelInfo, ModelUse
from reprise.engine.interface.status import EngineCounts, sum_counts
from reprise.engine.memory.budget import Holder
from reprise.engine.pool.catalogue import Catalogue, FoundModel
from reprise.engine.pool.model_engine import ModelEngine
from reprise.engine.text.markers import Markers


@dataclass(eq=False)
class ServedModel:
    """A model that requests may ask for. KnownModels.lock guards the fields that other threads use.

    max_context_tokens, shows_images: as its settings say.
    engine: present while the weights are loaded, or requests wait for them.
    is_loaded: whether the weights are in memory. progress, phase: see ModelEntry.
    budget: the memory that the model holds; None while it is not loaded.
    num_uses: leases that requests hold. waiting: requests that wait for the model.
    leaving: futures of those who wait for it to be unloaded; until then no request gets a lease.
    used_at: when it was last requested or released, by time.monotonic(). keep_s: see ModelUse.
    """

    found: FoundModel
    max_context_tokens: int | None = None
    shows_images: bool = True
    engine: ModelEngine | None = None
    is_loaded: bool = False
    budget: Holder | None = None
    progress: float | None = None
    phase: str | None = None
    fault: str | None = None
    info: ModelInfo | None = None
    markers: Markers | None = None
    can_infill: bool | None = None
    num_uses: int = 0
    num_loads: int = 0
    used_at: float = 0.0
    keep_s: float | None = None
    waiting: deque["Future[ModelUse]"] = field(default_factory=deque)
    leaving: list["Future[None]"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name by which requests ask for it."""
        return self.found.name

    @property
    def is_answering(self) -> bool:
        """Whether any of the model's requests has not ended."""
        return self.engine is not None and self.engine.lifecycle.num_live > 0

    @property
    def is_wanted(self) -> bool:
        """Whether requests wait for the model's weights."""
        return bool(self.waiting) or (not self.is_loaded and self.is_answering)

    def entry(self, keep_s: float) -> ModelEntry:
        """Describe the model for lists. keep_s: for how many seconds it stays loaded without requests."""
        status = self.engine.status() if self.engine else None
        folder, info, markers = self.found.folder, self.info, self.markers
        tokens = info.context_tokens if info else folder.context_tokens
        if tokens and self.max_context_tokens:
            tokens = min(tokens, self.max_context_tokens)
        idle_left_s = None
        if self.is_loaded and isfinite(keep_s):
            idle_s = 0.0 if self.num_uses else time.monotonic() - self.used_at
            idle_left_s = max(0.0, keep_s - idle_s)
        return ModelEntry(
            name=self.name,
            state="loaded" if self.is_loaded else "unloaded" if self.progress is None else "loading",
            size_bytes=(info or folder).weight_bytes,
            context_tokens=tokens,
            progress=self.progress,
            phase=self.phase if self.progress is not None else None,
            fault=self.fault or folder.fault,
            num_running=status.num_running if status else 0,
            num_waiting=(status.num_waiting if status else 0) + len(self.waiting),
            num_loads=self.num_loads,
            info=info,
            can_call=markers.can_call if markers else None,
            can_think=markers.can_think if markers else None,
            tool_format=markers.format_name if markers else None,
            thinking_switches=markers.thinking_switches if markers else (),
            purpose=(info or folder).purpose,
            embedding=(info or folder).embedding,
            vision=info.vision if info else folder.vision if self.shows_images else None,
            can_infill=self.can_infill,
            idle_left_s=idle_left_s,
        )


class KnownModels:
    """All models by name, and the requests that wait for them. Thread-safe.

    sections: settings of single models, by name. catalogue: the models on disk.
    may_unload: whether models are loaded and unloaded as requests ask; else there is a single one.

    lock: guards everything here that more than one thread reads or changes.
    wake: set when the thread that owns MLX has something to do.
    wanted: models to be loaded, in the order of their requests.
    lacks_memory: whether one of these waits for memory; until it has it, no request gets a lease.
    retired: the counts of engines that are gone. is_stopping: whether all requests are refused.
    num_loading_steps: grows with the progress of loads. fault: why the thread that owns MLX died, if it did.
    """

    def __init__(
        self, settings: Settings, sections: Mapping[str, Section], catalogue: Catalogue, *, may_unload: bool
    ) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.may_unload = may_unload
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
                # Its files may have been fixed.
                model.fault = model.info = None
            model.found = found
        return model

    def want(self, model: ServedModel) -> None:
        """Request a load from the thread that owns MLX. Called with the lock."""
        if model not in self.wanted:
            self.wanted.append(model)
            self.wake.set()

    def may_use(self, model: ServedModel) -> bool:
        """Return whether a request may get a lease on a model now. Called with the lock."""
        return model.is_loaded and not self.lacks_memory and not model.leaving

    def use(self, model: ServedModel) -> ModelUse:
        """Make a lease on a loaded model. Called with the lock."""
        assert model.engine is not None
        model.num_uses += 1
        model.used_at = time.monotonic()
        return ModelUse(model.engine, partial(self._end_use, model))

    def give(self, model: ServedModel, future: "Future[ModelUse]") -> None:
        """Set a future to a lease on a loaded model, unless it was cancelled. Called with the lock."""
        if future.set_running_or_notify_cancel():
            future.set_result(self.use(model))

    def give_waiting(self) -> None:
        """Give leases on loaded models to all requests that wait for them."""
        with self.lock:
            for model in tuple(self.wanted):
                while model.is_loaded and model.waiting and not model.leaving:
                    self.give(model, model.waiting.popleft())
                # Requests that came after the failure try again.
                if not model.waiting and (model.is_loaded or not model.is_answering):
                    self.wanted.remove(model)

    def stay(self, model: ServedModel, left: "Future[None]") -> None:
        """Forget a wait for an unload, which has ended or was cancelled."""
        with self.lock:
            model.leaving = [one for one in model.leaving if one is not left]
        self.wake.set()

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
            if engine := model.engine:
                self.retired = sum_counts([self.retired, engine.counts()])
                # Nobody reads a call that another thread makes now.
                engine.lifecycle.begin_draining(0.0)
                engine.inbox.refuse_all(Failed("engine", f"{model.name} was unloaded"))
            model.engine = None

    def _end_use(self, model: ServedModel, use: ModelUse) -> None:
        with self.lock:
            model.num_uses -= 1
            model.used_at, model.keep_s = time.monotonic(), use.keep_s
        self.wake.set()
