"""Serve several models on one thread: what other threads ask for, which thread.py does.

Engines work as if each were alone: queue, batch, recovery and drafts are theirs. They share the thread that
owns MLX (turns.py), the machine's memory (memory/sharing.py), and the drafters of a vocabulary
(kept_sources.py).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import mlx.core as mx

from config.per_model import Section
from config.settings import Settings
from engine.embedding.engine import EmbeddingEngine
from engine.engine import Engine
from engine.interface.errors import EngineError, ModelLoadError, SharedTableError
from engine.interface.events import Sink
from engine.interface.models import ModelEntry, ModelInfo
from engine.interface.request import GenerationRequest, Grammar
from engine.interface.status import EngineCounts, EngineStatus
from engine.model.hub_download import ReportBytes
from engine.model.loading import StartProgress
from engine.pool.catalogue import Catalogue
from engine.pool.kept_sources import MakeSourcesFor
from engine.pool.model import ModelUse
from engine.pool.models import PooledModels
from engine.pool.thread import PoolThread
from engine.stats import sum_counts
from engine.text.tokenizer import Tokenizer


class ModelPool:
    """Owns the thread that owns MLX, and the engines of all models. Any thread may call its methods.

    sections: settings of single models. make_sources: None to draft nothing.
    catalogue: the models that there are; by default those that the settings name.
    make_engine: replaces the making of engines.

    on_death: if set, called once on the thread with the fault's text if the thread dies.
    """

    def __init__(
        self,
        settings: Settings,
        sections: dict[str, Section] | None = None,
        make_sources: MakeSourcesFor | None = None,
        catalogue: Catalogue | None = None,
        make_engine: Callable[..., Engine] = Engine,
    ) -> None:
        self.settings = settings
        self.on_death: Callable[[str], None] | None = None
        self._models = PooledModels(settings, sections or {}, catalogue or Catalogue(settings))
        self._thread = PoolThread(self._models, make_sources, make_engine, self._tell_death)

    @property
    def info(self) -> ModelInfo:
        """The model that the server started with. Raises RuntimeError before start() has returned."""
        info = self._models.first.info
        if info is None:
            raise RuntimeError("the engine has not been started")
        return info

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model that the server started with, while that is loaded."""
        engine = self._models.first.engine
        if engine is None:
            raise EngineError("draining", f"{self._models.first.name} is not loaded")
        return engine.tokenizer

    def start(self, on_progress: StartProgress | None = None) -> None:
        """Load the first model; returns when requests are accepted. Raises ModelError. See Engine.start()."""
        self._thread.start(on_progress)

    def entries(self) -> list[ModelEntry]:
        """Describe all models, the one that the server started with first. Reads the disk."""
        found = self._models.catalogue.list_all()
        with self._models.lock:
            for one in found:
                self._models.note(one)
            names = dict.fromkeys([one.name for one in found])
            # Those whose folder is gone are still there while they are loaded.
            names |= dict.fromkeys(name for name, model in self._models.by_name.items() if model.engine)
            return [self._models.describe(self._models.by_name[name]) for name in names]

    def loaded_entries(self) -> list[ModelEntry]:
        """Describe the models that are loaded, loading, or waited for. Never blocks for long."""
        with self._models.lock:
            return [
                self._models.describe(model)
                for model in self._models.list_all()
                if model.engine or model.is_wanted or model.num_loads
            ]

    def find(self, name: str) -> ModelEntry | None:
        """Describe a model; None if there is none of that name. Reads the disk if it is not loaded."""
        model = self._models.find(name)
        with self._models.lock:
            return self._models.describe(model) if model else None

    def acquire(self, name: str) -> "Future[ModelUse]":
        """Load a model for a request, unless it is loaded. Its use must be ended, or its future cancelled.

        Raises ModelLoadError for an unknown name, and EngineError if too many wait for it already. The future
        raises ModelLoadError if the model cannot be loaded.
        """
        model = self._models.find(name)
        if model is None:
            raise ModelLoadError("unknown", f"there is no model {name}")
        future: Future[ModelUse] = Future()
        with self._models.lock:
            if self._models.is_stopping or self._models.fault:
                raise ModelLoadError("draining", "the server is not taking requests now")
            model.used_at = time.monotonic()
            if model.is_loaded and not self._models.lacks_memory and not model.leaving:
                self._models.give(model, future)
            elif len(model.waiting) >= self.settings.max_rows + self.settings.max_queue:
                message = f"{len(model.waiting)} requests wait for {name}; try again later"
                raise EngineError("queue_full", message)
            else:
                model.waiting.append(future)
                self._models.want(model)
        return future

    def unload(self, name: str) -> "Future[None]":
        """Unload a model once its requests have ended; requests that come later load it again.

        Raises ModelLoadError for an unknown name.
        """
        model = self._models.find(name)
        if model is None:
            raise ModelLoadError("unknown", f"there is no model {name}")
        future: Future[None] = Future()
        with self._models.lock:
            if model.is_loaded:
                model.leaving.append(future)
            else:
                future.set_result(None)
        self._models.wake.set()
        return future

    def pull(self, name: str, report: ReportBytes) -> ModelEntry:
        """Download a model from the hub, which takes long, and describe it. Raises ModelLoadError.

        report: see hub_download.py. What it raises ends the download, which can be continued.
        """
        self._models.catalogue.pull(name, report)
        entry = self.find(name)
        assert entry is not None
        return entry

    def settings_of(self, name: str) -> Settings:
        """Return the settings for a model."""
        return self._models.settings_of(name)

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a request for the model that the server started with. See Engine.submit()."""
        self._first_engine.submit(request, sink)

    def compile_grammar(self, grammar: Grammar) -> Grammar:
        """Return the grammar as compiled, for requests to the model that the server started with."""
        return self._first_engine.compile_grammar(grammar)

    def cancel(self, request_id: str) -> None:
        """End a request to the model that the server started with."""
        self._first_engine.cancel(request_id)

    def status(self) -> EngineStatus:
        """Return the present state of all models together."""
        with self._models.lock:
            statuses = [model.engine.status() for model in self._models.list_all() if model.engine]
            num_waiting = sum(len(model.waiting) for model in self._models.list_all())
        state, fault = "ready", self._models.fault
        if not self._thread.has_started:
            state = "loading"
        elif fault is not None:
            state = "dead"
        elif self._models.is_stopping:
            state = "draining"
        if (stall := self._thread.stall) and state in ("ready", "draining"):
            state, fault = "stalled", stall
        return EngineStatus(
            state,  # type: ignore[arg-type]
            sum(one.num_running for one in statuses),
            sum(one.num_waiting for one in statuses) + num_waiting,
            fault,
            max([one.retry_after_s for one in statuses], default=1.0),
        )

    def counts(self) -> EngineCounts:
        """Return the counts of all models, unloaded ones included, and the memory that MLX holds now."""
        with self._models.lock:
            counts = [model.engine.counts() for model in self._models.list_all() if model.engine]
            whole = sum_counts([self._models.retired, *counts])
        return replace(
            whole,
            num_stalls=self._thread.num_stalls,
            station_s=self._thread.station_s,
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
            cache_bytes=mx.get_cache_memory(),
        )

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the prefix caches' counts by the model's name, followed by " draft" for its draft model."""
        with self._models.lock:
            engines = {model.name: model.engine for model in self._models.list_all() if model.engine}
        return {
            name if part == "target" else f"{name} {part}": status
            for name, engine in engines.items()
            for part, status in engine.prefix_status().items()
        }

    def table_status(self) -> dict[str, Any]:
        """Return the counts of the n-gram table of the model that the server started with. See Engine."""
        return self._first_engine_for_table().table_status()

    def table_reset(self) -> None:
        """Drop what drafters learned for the model that the server started with. See Engine."""
        self._first_engine_for_table().table_reset()

    def table_save(self) -> str:
        """Save the table of the model that the server started with. See Engine."""
        return self._first_engine_for_table().table_save()

    def table_load(self) -> str:
        """Load the table of the model that the server started with. See Engine."""
        return self._first_engine_for_table().table_load()

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, give running ones drain_s seconds to finish, then end the thread."""
        with self._models.lock:
            self._models.is_stopping = True
            for model in self._models.list_all():
                if model.engine:
                    model.engine.begin_stop(drain_s)
        self._models.wake.set()
        self._thread.join()

    @property
    def _first_engine(self) -> Engine:
        engine = self._models.first.engine
        if engine is None or isinstance(engine, EmbeddingEngine):
            raise EngineError("draining", f"{self._models.first.name} is not loaded, or generates no text")
        return engine

    def _first_engine_for_table(self) -> Engine:
        if not self._models.first.is_loaded or self._models.first.found.folder.purpose != "generate":
            raise SharedTableError(f"{self._models.first.name} is not loaded, or generates no text")
        return self._first_engine

    def _tell_death(self, fault: str) -> None:
        if self.on_death:
            self.on_death(fault)
