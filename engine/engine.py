"""The engine's interface for other threads. The loop runs their requests on the thread that owns MLX."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import mlx.core as mx

from reprise.config.per_model import Section, settings_of
from reprise.config.settings import Settings
from reprise.config.unknown import suggestion
from reprise.engine.checkpoint import check_folder
from reprise.engine.embedding.embedding_engine import EmbeddingEngine
from reprise.engine.generating.generating_engine import GeneratingEngine, TableOfModel
from reprise.engine.interface.embeddings import Purpose
from reprise.engine.interface.errors import EngineError, ModelLoadError, SharedTableError
from reprise.engine.interface.events import Sink
from reprise.engine.interface.models import ModelEntry, ModelInfo, ModelUse, Progress, StartProgress
from reprise.engine.interface.request import GenerationRequest, Grammar
from reprise.engine.interface.status import EngineCounts, EngineStatus, sum_counts
from reprise.engine.kv_cache.exact_widths import Exactness, Shape, Tried, find_exact_shapes
from reprise.engine.loop import Loop
from reprise.engine.memory.pressure import LEVELS, MemoryPressure
from reprise.engine.model.hub import ReportBytes, find_folder
from reprise.engine.model.loading import check_adapter
from reprise.engine.pool.catalogue import Catalogue, choose_first
from reprise.engine.pool.residency import EngineMaker, MakeEngine, Makers, MakeSourcesFor, Residency
from reprise.engine.pool.served_models import KnownModels
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.text.tokenizer import Tokenizer

log = logging.getLogger("reprise.engine")


class Engine:
    """All models of a server, one or many, and the loop that runs them. Any thread may call its methods.

    Each model's engine works as if it were alone, with its own queue, batch, recovery and drafts. All share
    the thread that owns MLX (pool/watchdog.py), the machine's memory (memory/budget.py), and the
    drafters of a vocabulary (pool/residency.py).

    makers: make the parts of a single model, which stays loaded. None: models are loaded and unloaded as
        requests ask for them.
    sections: the settings of single models, by section name. make_sources: makes a model's drafters; None to
        draft nothing.
    catalogue: lists the models that can be loaded; by default those that the settings name.
    make_engine: makes the engine of a model that generates text.
    may_unload: whether models are loaded and unloaded while it runs.
    on_death: if set, called once on the engine's thread with the exception's text if that thread dies.
    """

    def __init__(
        self,
        settings: Settings,
        makers: Makers | None = None,
        *,
        sections: Mapping[str, Section] | None = None,
        make_sources: MakeSourcesFor | None = None,
        catalogue: Catalogue | None = None,
        make_engine: MakeEngine = GeneratingEngine,
    ) -> None:
        self.settings = settings
        self.may_unload = makers is None
        self.on_death: Callable[[str], None] | None = None
        catalogue = catalogue or Catalogue(settings)
        self._known = KnownModels(settings, sections or {}, catalogue, may_unload=self.may_unload)
        maker = EngineMaker(self._known, makers, make_sources, make_engine, EmbeddingEngine)
        self._loop = Loop(self._known, Residency(self._known, maker), self._tell_death)
        if makers and makers.ranks:
            makers.ranks.abort = self.abort

    def start(self, on_progress: StartProgress | None = None) -> None:
        """Load the first model; returns when requests are accepted. Raises ModelError.

        on_progress: called on the engine's thread with the name and the completed share of each slow stage.
        """
        self._loop.start(on_progress)

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, give running ones drain_s seconds to finish, then end the thread.

        Requests that wait for a row, and those that do not finish in time, get Failed("draining").
        """
        self._loop.stop(drain_s)

    @property
    def pressure(self) -> MemoryPressure:
        """The memory pressure of the machine."""
        return self._loop.pressure

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

    @property
    def first_engine(self) -> GeneratingEngine:
        """The engine of the model that the server started with. Raises EngineError if it has none now."""
        engine = self._known.first.engine
        if not isinstance(engine, GeneratingEngine):
            raise EngineError("draining", f"{self._known.first.name} is not loaded, or generates no text")
        return engine

    @property
    def table(self) -> TableOfModel:
        """The first model's n-gram table. Raises SharedTableError."""
        first = self._known.first
        if not first.is_loaded or first.found.folder.purpose != "generate":
            raise SharedTableError(f"{first.name} is not loaded, or generates no text")
        return self.first_engine.table

    @property
    def costs(self) -> StepCosts:
        """The costs of the first model's steps as learned so far. Raises RuntimeError if it is not loaded."""
        return self.first_engine.costs

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a request for the first model. See GeneratingEngine.submit()."""
        self.first_engine.submit(request, sink)

    def compile_grammar(self, grammar: Grammar) -> Grammar:
        """Compile a grammar for requests to the first model. May take long.

        Raises GrammarError.
        """
        return self.first_engine.compile_grammar(grammar)

    def cancel(self, request_id: str) -> None:
        """End a request to the first model; its sink gets Failed("cancelled"), unless it has ended."""
        self.first_engine.cancel(request_id)

    def status(self) -> EngineStatus:
        """Return the present state of all models together, for /health."""
        with self._known.lock:
            statuses = [model.engine.status() for model in self._known.list_all() if model.engine]
            num_waiting = sum(len(model.waiting) for model in self._known.list_all())
        state, fault = "ready", self._known.fault
        if not self.may_unload and fault is None:
            # The requests of the only model end before the loop does.
            fault = next((one.fault for one in statuses), None)
        if fault is not None:
            state = "dead"
        elif self._known.is_stopping:
            state = "draining"
        elif not self._loop.has_started:
            state = "loading"
        if (stall := self._loop.stall) and state in ("ready", "draining"):
            state, fault = "stalled", stall
        return EngineStatus(
            state,  # type: ignore[arg-type]
            sum(one.num_running for one in statuses),
            sum(one.num_waiting for one in statuses) + num_waiting,
            fault,
            max([one.retry_after_s for one in statuses], default=1.0),
            self.pressure.level,
        )

    def counts(self) -> EngineCounts:
        """Return the counts of all models, unloaded ones included, and the memory that MLX holds now."""
        with self._known.lock:
            counts = [model.engine.counts() for model in self._known.list_all() if model.engine]
            whole = sum_counts([self._known.retired, *counts])
        return replace(
            whole,
            num_stalls=self._loop.num_stalls,
            pressure_level=LEVELS.index(self.pressure.level),
            given_back_bytes=self.pressure.given_back_bytes,
            span_s=self._loop.span_s,
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
            cache_bytes=mx.get_cache_memory(),
        )

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
        """Describe the models that are loaded, loading, or requested. Never blocks for long."""
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
        """Acquire a lease on a model, for the caller to end; None if the model is not loaded yet."""
        with self._known.lock:
            model = self._known.by_name.get(name)
            if model is None or self._known.is_stopping or self._known.fault:
                return None
            return self._known.use(model) if self._known.may_use(model) else None

    def acquire(self, name: str) -> "Future[ModelUse]":
        """Acquire a lease on a model, loaded if need be. The caller ends the lease or cancels the future.

        Raises ModelLoadError for an unknown name, and EngineError if too many requests wait for it. The
        future raises ModelLoadError if the model cannot be loaded.
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
            elif len(model.waiting) >= self.settings.capacity:
                message = f"{len(model.waiting)} requests wait for {name}; try again later"
                raise EngineError("queue_full", message)
            else:
                model.waiting.append(future)
                self._known.want(model)
        return future

    def unload(self, name: str) -> "Future[None]":
        """Unload a model once its requests have ended; requests that come later load it again.

        A future that is cancelled before that leaves the model loaded.
        Raises ModelLoadError for an unknown name.
        """
        model = self._known.find(name)
        if model is None:
            raise ModelLoadError("unknown", f"there is no model {name}")
        future: Future[None] = Future()
        with self._known.lock:
            if model.is_loaded:
                model.leaving.append(future)
                future.add_done_callback(partial(self._known.stay, model))
            else:
                future.set_result(None)
        self._known.wake.set()
        return future

    def pull(self, name: str, report: ReportBytes) -> ModelEntry:
        """Download a model from the hub, which takes long, and describe it. Raises ModelLoadError.

        report: called with the bytes so far, see model/hub.py. If it raises, the download ends; a later call
            continues it.
        """
        self._known.catalogue.pull(name, report)
        entry = self.find(name)
        assert entry is not None
        return entry

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the prefix caches' counts by model name, with " draft" appended for draft models.

        A single model's are under "target" and "draft".
        """
        if not self.may_unload:
            return self.first_engine.prefix_status()
        with self._known.lock:
            engines = {model.name: model.engine for model in self._known.list_all() if model.engine}
        return {
            name if part == "target" else f"{name} {part}": status
            for name, engine in engines.items()
            for part, status in engine.prefix_status().items()
        }

    def margin(self, tokens: tuple[int, ...]) -> float:
        """Return the difference between the two highest logits of the token that follows, >= 0.

        Explains why two answers diverge: a margin near 0 is a near-tie, which rounding decides.
        """

        def measure() -> float:
            logits = self.first_engine.loaded.model(mx.array([list(tokens)]))[0, -1].astype(mx.float32)
            top: list[float] = mx.sort(logits)[-2:].tolist()  # type: ignore[assignment]
            return top[1] - top[0]

        return float(self.first_engine.between_steps(measure))

    def find_exact(self, shapes: Iterable[Shape], progress: Progress = lambda _: None) -> Exactness:
        """Find the (rows, width) shapes whose logits equal those of width 1 byte for byte. Slow.

        shapes: those to try. progress: called on the engine's thread with the share that is done.
        """

        def find() -> Exactness:
            loaded, kv_bits = self.first_engine.loaded, self.settings.kv_bits
            info, sharing = loaded.info, loaded.find_sharing(kv_bits)
            tried = Tried(loaded.model, sharing, kv_bits, info.vocab_size, info.context_tokens)
            return find_exact_shapes(tried, shapes, progress)

        found: Exactness = self.first_engine.between_steps(find)
        return found

    def abort(self, reason: str) -> None:
        """End every request at once: the engine's thread waits for a lost rank and will never continue.

        Any thread may call this. The process must end after it.
        """
        self._known.fault = reason
        for model in self._known.list_all():
            if model.engine:
                model.engine.abandon(reason)
        self._tell_death(reason)

    def _tell_death(self, fault: str) -> None:
        if self.on_death:
            self.on_death(fault)


def make_engine(
    settings: Settings,
    make_sources: MakeSourcesFor | None = None,
    sections: Mapping[str, Section] | None = None,
    on_progress: StartProgress = lambda *_: None,
) -> Engine:
    """Make the engine that the settings describe, for one model or for several that requests load and unload.

    A model on the hub is downloaded first. The caller starts the engine; its settings are those in force.

    make_sources: makes the drafters of a model with given settings; None turns drafting off.
    sections: settings of single models.
    on_progress: called with a download's name and the share that is done.
    Raises ModelError.
    """
    check_model(settings)
    sections = sections or {}
    is_several = settings.may_unload or _find_purpose(settings, on_progress) != "generate"
    settings = choose_first(settings)
    _check_sections(settings, sections)
    if is_several:
        return Engine(settings, sections=sections, make_sources=make_sources)
    settings = settings_of(settings, sections, settings.model_name)
    return Engine(settings, Makers(make_sources=make_sources(settings) if make_sources else None))


def _check_sections(settings: Settings, sections: Mapping[str, Section]) -> None:
    """Log the sections that are for no model that is here, as a warning if a model has a similar name."""
    catalogue = Catalogue(settings)
    for name in sections:
        if catalogue.find(name) is None:
            meant = suggestion(name, [one.name for one in catalogue.list_all()])
            level = logging.WARNING if meant else logging.INFO
            log.log(level, '[models."%s"] is for no model here%s', name, meant)


def check_model(settings: Settings) -> None:
    """Raise ModelError early if the folder holds no model."""
    if settings.model is not None and Path(settings.model).is_dir():
        check_folder(Path(settings.model))


def _find_purpose(settings: Settings, on_progress: StartProgress) -> Purpose:
    """Return the purpose of the settings' model, downloaded first if need be. Raises ModelError."""
    check_adapter(settings.adapter_path)
    download = f"Downloading {settings.model_name}"
    check_folder(find_folder(settings.model_source, lambda share: on_progress(download, share)))
    return Catalogue(settings).purpose
