"""Several models on one thread: what other threads ask for, which the loop does.

Engines work as if each were alone: queue, batch, recovery and drafts are theirs. They share the thread that
owns MLX (models/time_shares.py), the machine's memory (memory/sharing.py), and the drafters of a vocabulary
(models/kept_sources.py).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from config.per_model import Section
from config.settings import Settings
from engine.embedding.engine import EmbeddingEngine
from engine.engine import LoopEngine
from engine.interface.errors import EngineError, ModelLoadError, SharedTableError
from engine.interface.models import ModelEntry, ModelInfo
from engine.model.hub_download import ReportBytes
from engine.model.loading import make_loader
from engine.models.catalogue import Catalogue
from engine.models.generating import GeneratingEngine
from engine.models.kept_sources import KeptSources, MakeSourcesFor
from engine.models.known import KnownModels
from engine.models.loads import Loads
from engine.models.messages import Inbox
from engine.models.model_engine import ModelEngine
from engine.models.served import ModelUse, ServedModel
from engine.setup import Makers
from engine.text.tokenizer import Tokenizer

MakeEngine = Callable[[Settings, Makers, Inbox], ModelEngine]
"""Makes the engine of a model that generates text."""


class ModelPool(LoopEngine):
    """The engines of all models, which are loaded and unloaded. Any thread may call its methods.

    sections: settings of single models. make_sources: None to draft nothing.
    catalogue: the models that there are; by default those that the settings name.
    make_engine: replaces the making of engines.
    is_fixed: see OneModel.
    """

    is_fixed = False

    def __init__(
        self,
        settings: Settings,
        sections: dict[str, Section] | None = None,
        make_sources: MakeSourcesFor | None = None,
        catalogue: Catalogue | None = None,
        make_engine: MakeEngine = GeneratingEngine,
    ) -> None:
        known = KnownModels(settings, sections or {}, catalogue or Catalogue(settings))
        maker = EngineMaker(known, KeptSources(make_sources) if make_sources else None, make_engine)
        super().__init__(settings, known, Loads(known, maker.make, maker.save))

    @property
    def first_name(self) -> str:
        """The name of the model that the server started with."""
        return self.settings.model_name

    @property
    def info(self) -> ModelInfo:
        """The model that the server started with. Raises RuntimeError before start() has returned."""
        info = self._known.first.info
        if info is None:
            raise RuntimeError("the engine has not been started")
        return info

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model that the server started with, while that is loaded."""
        engine = self._known.first.engine
        if engine is None:
            raise EngineError("draining", f"{self._known.first.name} is not loaded")
        return engine.tokenizer

    def entries(self) -> list[ModelEntry]:
        """Describe all models, the one that the server started with first. Reads the disk."""
        found = self._known.catalogue.list_all()
        with self._known.lock:
            for one in found:
                self._known.note(one)
            names = dict.fromkeys([one.name for one in found])
            # Those whose folder is gone are still there while they are loaded.
            names |= dict.fromkeys(name for name, model in self._known.by_name.items() if model.engine)
            return [self._known.describe(self._known.by_name[name]) for name in names]

    def loaded_entries(self) -> list[ModelEntry]:
        """Describe the models that are loaded, loading, or waited for. Never blocks for long."""
        with self._known.lock:
            return [
                self._known.describe(model)
                for model in self._known.list_all()
                if model.engine or model.is_wanted or model.num_loads
            ]

    def find(self, name: str) -> ModelEntry | None:
        """Describe a model; None if there is none of that name. Reads the disk if it is not loaded."""
        model = self._known.find(name)
        with self._known.lock:
            return self._known.describe(model) if model else None

    def use_loaded(self, name: str) -> ModelUse | None:
        """Return a use of a model that is loaded, which must be ended; None if it must be waited for."""
        with self._known.lock:
            model = self._known.by_name.get(name)
            if model is None or self._known.is_stopping or self._known.fault:
                return None
            return self._known.use(model) if self._known.may_use(model) else None

    def acquire(self, name: str) -> "Future[ModelUse]":
        """Load a model for a request, unless it is loaded. Its use must be ended, or its future cancelled.

        Raises ModelLoadError for an unknown name, and EngineError if too many wait for it already. The future
        raises ModelLoadError if the model cannot be loaded.
        """
        model = self._known.find(name)
        if model is None:
            raise ModelLoadError("unknown", f"there is no model {name}")
        future: Future[ModelUse] = Future()
        with self._known.lock:
            if self._known.is_stopping or self._known.fault:
                raise ModelLoadError("draining", "the server is not taking requests now")
            model.used_at = time.monotonic()
            if self._known.may_use(model):
                self._known.give(model, future)
            elif len(model.waiting) >= self.settings.max_rows + self.settings.max_queue:
                message = f"{len(model.waiting)} requests wait for {name}; try again later"
                raise EngineError("queue_full", message)
            else:
                model.waiting.append(future)
                self._known.want(model)
        return future

    def unload(self, name: str) -> "Future[None]":
        """Unload a model once its requests have ended; requests that come later load it again.

        Raises ModelLoadError for an unknown name.
        """
        model = self._known.find(name)
        if model is None:
            raise ModelLoadError("unknown", f"there is no model {name}")
        future: Future[None] = Future()
        with self._known.lock:
            if model.is_loaded:
                model.leaving.append(future)
            else:
                future.set_result(None)
        self._known.wake.set()
        return future

    def pull(self, name: str, report: ReportBytes) -> ModelEntry:
        """Download a model from the hub, which takes long, and describe it. Raises ModelLoadError.

        report: see hub_download.py. What it raises ends the download, which can be continued.
        """
        self._known.catalogue.pull(name, report)
        entry = self.find(name)
        assert entry is not None
        return entry

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the prefix caches' counts by the model's name, followed by " draft" for its draft model."""
        with self._known.lock:
            engines = {model.name: model.engine for model in self._known.list_all() if model.engine}
        return {
            name if part == "target" else f"{name} {part}": status
            for name, engine in engines.items()
            for part, status in engine.prefix_status().items()
        }

    @property
    def first_engine(self) -> GeneratingEngine:
        """The engine of the model that it started with. Raises EngineError if there is none now."""
        engine = self._known.first.engine
        if not isinstance(engine, GeneratingEngine):
            raise EngineError("draining", f"{self._known.first.name} is not loaded, or generates no text")
        return engine

    @property
    def _first_with_table(self) -> GeneratingEngine:
        first = self._known.first
        if not first.is_loaded or first.found.folder.purpose != "generate":
            raise SharedTableError(f"{first.name} is not loaded, or generates no text")
        return self.first_engine


class EngineMaker:
    """Makes the engines of models. sources: their drafters; None to draft nothing."""

    def __init__(self, known: KnownModels, sources: KeptSources | None, make_engine: MakeEngine) -> None:
        self._known, self._sources, self._make_engine = known, sources, make_engine

    def make(self, model: ServedModel) -> ModelEngine:
        """Make the engine of a model, which is not loaded yet."""
        found, settings = model.found, self._known.settings_of(model.name)
        # The first may be downloaded at its first load.
        if model is not self._known.first or (model.num_loads and found.folder.path.is_dir()):
            settings = replace(settings, model=str(found.folder.path))
        inbox = Inbox(self._known.wake.set)
        if found.folder.purpose != "generate":
            settings = replace(settings, model=str(found.folder.path))
            return EmbeddingEngine(settings, model.name, inbox, self._count_running)
        if found.adapter:
            settings = replace(settings, adapter_path=str(found.adapter))
        make_sources = self._sources.maker(settings) if self._sources else None
        # Its table is kept here.
        settings = replace(settings, ngram_table_file=None)
        return self._make_engine(settings, Makers(make_loader(settings, model.name), make_sources), inbox)

    def save(self) -> None:
        """Save what drafters learned."""
        if self._sources:
            self._sources.save()

    def _count_running(self) -> int:
        """Return how many models that generate have requests that decode or prefill."""
        engines = [model.engine for model in self._known.list_all()]
        return sum(one.is_running for one in engines if isinstance(one, GeneratingEngine))
