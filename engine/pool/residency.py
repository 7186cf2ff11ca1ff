"""Load and unload models as requests ask for them, on the thread that owns MLX.

    unload models that are due -> load wanted models

Models are loaded in the order of their requests. A model that lacks memory waits until others have finished
their requests. Meanwhile new requests to any model wait too, or a busy model could keep it waiting forever.
Only this wait delays requests for other models.
"""

import ctypes
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import mlx.core as mx

from reprise.config.process_memory import collect_all, return_freed
from reprise.config.settings import Settings
from reprise.engine.interface.errors import ModelError, ModelLoadError
from reprise.engine.interface.events import Failed
from reprise.engine.interface.models import Progress, StartProgress
from reprise.engine.memory.budget import Holder, SharedMemory
from reprise.engine.model.device import usable_bytes
from reprise.engine.model.loading import Load, LoadedModel, make_loader
from reprise.engine.pool.model_engine import Inbox, ModelEngine
from reprise.engine.pool.served_models import KnownModels, ServedModel
from reprise.engine.pool.watchdog import SLICE_S
from reprise.engine.speculative import proposers
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.heads.head_drafter import NamedHead
from reprise.engine.speculative.proposers import DraftSources, MakeSources

MAX_KEPT = 4
"""Vocabularies whose drafters are kept without a model that uses them. Each has a table of n-grams."""

MakeSourcesFor = Callable[[Settings], MakeSources]
"""Returns a factory of drafters for a model with these settings."""


class KeptSources:
    """The drafters of all models, shared by vocabulary. Used by the engine's thread only.

    The first vocabulary's n-gram table is in the settings' file, the others' in files next to it.
    """

    def __init__(self, make_for: MakeSourcesFor) -> None:
        self._make_for = make_for
        self._kept: OrderedDict[str, tuple[DraftSources, Settings]] = OrderedDict()
        self._first: str | None = None

    def maker(self, settings: Settings) -> MakeSources:
        """Return a function from a vocabulary's fingerprint to its drafters, made on first use."""
        return lambda vocabulary: self._find(settings, vocabulary)

    def save(self) -> None:
        """Save the n-gram tables and finished requests of all vocabularies to their files."""
        for sources, settings in self._kept.values():
            proposers.save(sources, settings)

    def _find(self, settings: Settings, vocabulary: str) -> DraftSources:
        if vocabulary not in self._kept:
            self._first = self._first or vocabulary
            if settings.ngram_table_file is not None and vocabulary != self._first:
                settings = replace(
                    settings, ngram_table_file=f"{settings.ngram_table_file}.{vocabulary[:16]}"
                )
            sources = self._make_for(settings)(vocabulary)
            proposers.restore(sources, settings)
            self._kept[vocabulary] = sources, settings
        self._kept.move_to_end(vocabulary)
        while len(self._kept) > MAX_KEPT:
            _, (dropped, its_settings) = self._kept.popitem(last=False)
            proposers.save(dropped, its_settings)
        return self._kept[vocabulary][0]


FindHead = Callable[[LoadedModel], NamedHead | None]
"""Finds and loads the head of a model; None if it has none. Raises ModelError."""


class Ranked(Protocol):
    """The machines that share a model, as seen from this one. abort: ends all requests; for any thread."""

    abort: Callable[[str], None]

    def load(self, progress: Progress | None) -> LoadedModel:
        """Load this machine's part after the others'. Raises ModelError."""

    def begin_serving(self) -> None:
        """Prepare for requests, which begin to arrive now."""

    def explain(self) -> str | None:
        """Return why a machine was lost, if that made a request fail; else None."""

    def count(self) -> dict[str, dict[str, float]]:
        """Return the metrics of each machine: metric's name -> rank -> value."""


@dataclass(frozen=True)
class Makers:
    """Factories for the parts of a model's engine. A part that is None is made as the settings say.

    load, load_draft: load the model and the draft model, on the engine's thread.
    make_sources: makes the drafters; without it nothing is drafted.
    find_head: finds the head that drafts from the model's states.
    costs: the costs of steps; by default they are learned, and kept on disk.
    waits_for_trials: whether to finish all trials of what the model can do before the first request.
    ranks: the machines that share the model, which load it instead of `load`.
    """

    load: Load | None = None
    make_sources: MakeSources | None = None
    load_draft: Load | None = None
    find_head: FindHead | None = None
    costs: StepCosts | None = None
    waits_for_trials: bool = False
    ranks: Ranked | None = None


MakeEngine = Callable[[Settings, Makers, Inbox], ModelEngine]
MakeEmbedder = Callable[[Settings, str, Inbox, Callable[[], int]], ModelEngine]
"""Make the engines of models that generate text, and of those that embed or rank; see their classes."""


class EngineMaker:
    """Makes the engines of models.

    makers: make the parts of the only model. None: the parts of each model are made as its settings say.
    make_sources: makes the models' drafters; None to draft nothing.
    """

    def __init__(
        self,
        known: KnownModels,
        makers: Makers | None,
        make_sources: MakeSourcesFor | None,
        make_engine: MakeEngine,
        make_embedder: MakeEmbedder,
    ) -> None:
        self._known, self._makers = known, makers
        self._make_engine, self._make_embedder = make_engine, make_embedder
        self._sources = KeptSources(make_sources) if make_sources else None

    def make(self, model: ServedModel) -> ModelEngine:
        """Make the engine of a model; the engine loads the model later."""
        inbox = Inbox(self._known.wake.set)
        if self._makers:
            return self._make_engine(self._known.settings, self._makers, inbox)
        found, settings = model.found, self._known.settings_of(model.name)
        # The first may be downloaded at its first load.
        if model is not self._known.first or (model.num_loads and found.folder.path.is_dir()):
            settings = replace(settings, model=str(found.folder.path))
        if found.folder.purpose != "generate":
            settings = replace(settings, model=str(found.folder.path))
            return self._make_embedder(settings, model.name, inbox, self._count_running)
        if found.adapter:
            settings = replace(settings, adapter_path=str(found.adapter))
        make_sources = self._sources.maker(settings) if self._sources else None
        # Its table is kept here.
        settings = replace(settings, ngram_table_file=None)
        return self._make_engine(settings, Makers(make_loader(settings, model.name), make_sources), inbox)

    def save(self) -> None:
        """Save what the drafters of all models learned."""
        if self._sources:
            self._sources.save()

    def _count_running(self) -> int:
        """Return how many models that generate have requests that decode or prefill."""
        engines = [model.engine for model in self._known.list_all()]
        return sum(one.is_running for one in engines if one and not one.passes_on)


_PENDING = 100
"""Loop iterations within which Python raises another thread's pending exception."""


class Interruption(BaseException):
    """Another thread interrupted this one's work. Not an Exception: models' code may catch those."""


class Interruptible:
    """Runs work that other threads can interrupt, since loading a model runs foreign code.

    Interrupts Python code only. A C call, such as reading an array, returns first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_over = False

    def run(self, work: Callable[[], None]) -> None:
        """Do the work. Raises Interruption if interrupt() has been called."""
        self._enter()
        try:
            work()
        finally:
            self._leave()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Shield a part of the work from interrupt(), which then raises Interruption around it."""
        self._leave()
        yield
        self._enter()

    def interrupt(self) -> None:
        """End the work that runs, and any later one. For other threads."""
        with self._lock:
            self._is_over = True
            if self._thread is not None:
                kind = ctypes.py_object(Interruption)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), kind)
                self._thread = None

    def _enter(self) -> None:
        with self._lock:
            if self._is_over:
                raise Interruption
            self._thread = threading.get_ident()

    def _leave(self) -> None:
        with self._lock:
            self._thread = None
        # Raises a pending Interruption here rather than later.
        for _ in range(_PENDING):
            pass


log = logging.getLogger("reprise.engine")

GRACE_S = 5.0
"""Seconds for which a model that was given to a request stays loaded until the request is queued."""

WAITING_S, DAY_S = 0.5, 86_400.0
"""Seconds after which to look again for memory for a model that is wanted, and for anything at all."""

SPARE_SHARE = 16
"""A model to load needs at least 1/SPARE_SHARE more than its weights."""


class Residency:
    """Loads and unloads models. Used by the thread that owns MLX only.

    known: all models. maker: makes their engines.
    serve: runs models that have work until a time by perf_counter().
    interrupt: ends a load that runs, and any later one. For other threads.
    """

    def __init__(self, known: KnownModels, maker: EngineMaker) -> None:
        self.serve: Callable[[float], None] = lambda _: None
        self._known, self._maker = known, maker
        self._log_level = logging.INFO if known.may_unload else logging.DEBUG
        self._memory = SharedMemory(known.settings.memory_bytes or usable_bytes(), self._unload_for)
        self._served_at = 0.0
        self._on_progress: StartProgress | None = None
        self._interruptible = Interruptible()
        self.interrupt = self._interruptible.interrupt

    def begin(self, on_progress: StartProgress | None) -> None:
        """Load the model that the server starts with, and others that start with it. Raises ModelError."""
        self._on_progress = on_progress
        try:
            self._load(self._known.first)
            self._load_beside()
        except ModelLoadError as fault:
            raise ModelError(str(fault)) from fault
        finally:
            self._on_progress = None

    def advance(self) -> None:
        """Unload the models that are due, and load those that are wanted."""
        if self._known.is_stopping:
            self._known.refuse_waiting()
        self._unload_due()
        self._load_wanted()

    @property
    def due_in_s(self) -> float:
        """Seconds until advance() may next have models to unload or load, at most a day."""
        now, most_s = time.monotonic(), WAITING_S if self._known.wanted else DAY_S
        loaded = [model for model in self._known.list_all() if model.is_loaded]
        idle = [model for model in loaded if not model.num_uses and not model.is_wanted]
        return max(0.0, min([most_s, *(model.used_at + self._known.keep_s(model) - now for model in idle)]))

    def lose(self, model: ServedModel) -> None:
        """Drop a model whose engine has died; the next request loads it again."""
        if not self._known.is_stopping:
            self._drop(model, "its engine has died, as the log says")

    def end(self) -> None:
        """Save the drafters that models share."""
        self._maker.save()

    def _load_wanted(self) -> None:
        """Load models in the order in which they were asked for, until one lacks memory."""
        for model in self._known.list_all():
            # Its weights were freed after it was given to a request, and before that came.
            if model.engine and not model.is_loaded and model.is_answering:
                with self._known.lock:
                    self._known.want(model)
        for model in tuple(self._known.wanted):
            if self._known.is_stopping:
                return
            with self._known.lock:
                while model.waiting and model.waiting[0].cancelled():
                    model.waiting.popleft()
            # One that leaves is unloaded first, once its requests have ended.
            if model.leaving or model.is_loaded or not model.is_wanted:
                continue
            try:
                self._known.lacks_memory = not self._make_room_for(model)
                if self._known.lacks_memory:
                    return
                self._known.give_waiting()
                self._load(model)
            except ModelLoadError as fault:
                self._drop(model, str(fault), fault)
            # Its files may hold anything, and vanish.
            except Exception as fault:
                log.error("cannot load %s", model.name, exc_info=fault)
                self._drop(model, f"{type(fault).__name__}: {fault}")
        self._known.lacks_memory = False
        self._known.give_waiting()

    def _make_room_for(self, model: ServedModel) -> bool:
        """Free memory for a model to be loaded; return whether there is enough. Raises ModelLoadError."""
        if (fault := model.found.folder.fault) and model is not self._known.first:
            raise ModelLoadError("not_loadable", f"model {model.name!r} cannot be loaded: {fault}")
        needed = model.found.folder.weight_bytes
        if draft_model := self._known.settings_of(model.name).draft_model:
            needed += self._known.catalogue.weight_bytes(draft_model)
        needed += needed // SPARE_SHARE
        if needed > self._memory.limit_bytes:
            raise ModelLoadError(
                "too_large",
                f"model {model.name!r} takes {needed / 2**20:,.0f} MiB at least, and there are "
                f"{self._memory.limit_bytes / 2**20:,.0f} MiB for all models (--memory-bytes)",
            )
        self._memory.loading_bytes = 0
        if not self._memory.make_room(needed):
            return False
        self._memory.loading_bytes = needed
        return True

    def _load_beside(self) -> None:
        """Load the models that embed or rank beside the first one. Raises ModelLoadError."""
        settings = self._known.settings
        named = [one for one in (settings.embedding_model, settings.rerank_model) if one is not None]
        if len({*settings.beside, settings.model_name}) <= len({*named}):
            raise ModelLoadError(
                "not_loadable", f"two models have the same name; rename a folder: {', '.join(named)}"
            )
        for name in settings.beside:
            model = self._known.find(name)
            if model is None or model.is_loaded:
                continue
            if model.found.folder.purpose == "generate" and not model.found.folder.fault:
                raise ModelLoadError("not_loadable", f"model {name!r} generates text: give it as --model")
            if not self._make_room_for(model):
                raise ModelLoadError("too_large", f"there is no memory for {name!r} (--memory-bytes)")
            self._load(model)

    def _load(self, model: ServedModel) -> None:
        """Load a model, with other models' steps in between. Raises ModelLoadError."""
        log.log(self._log_level, "loading %s", model.name)
        engine = model.engine
        with self._known.lock:
            model.progress, model.phase, model.fault = 0.0, None, None
        try:
            if engine is None:
                engine = self._maker.make(model)
                with self._known.lock:
                    if self._known.is_stopping:
                        raise ModelError("the server is stopping")
                    model.engine = engine
            self._interruptible.run(partial(engine.load, partial(self._note_progress, model)))
            self._note_loaded(model, engine)
            return
        except (Interruption, ModelError) as raised:
            # Without the traceback, which keeps what was loaded.
            told = str(raised)
        except Exception as raised:
            log.error("cannot load %s", model.name, exc_info=raised)
            told = f"{type(raised).__name__}: {raised}"
        finally:
            self._memory.loading_bytes = 0
        if self._known.is_stopping:
            raise ModelLoadError("draining", "the server is stopping")
        if self._known.may_unload:
            told = f"model {model.name!r} cannot be loaded: {told}"
        raise ModelLoadError("not_loadable", told)

    def _note_loaded(self, model: ServedModel, engine: ModelEngine) -> None:
        # They render the chat template, which may fail.
        markers, can_infill = engine.tokenizer.markers, engine.tokenizer.fim is not None
        self._note_worker(model, engine)
        with self._known.lock:
            model.is_loaded, model.progress = True, None
            model.markers, model.can_infill = markers, can_infill
            model.num_loads += 1
            model.used_at, model.keep_s = time.monotonic(), None
        log.log(self._log_level, "loaded %s", model.name)
        engine.on_remade = partial(self._note_worker, model, engine)

    def _note_worker(self, model: ServedModel, engine: ModelEngine) -> None:
        """Record the memory and the facts of a model with a new worker."""
        budget = engine.memory_budget
        # An only model shares its memory with nobody.
        if budget and self._known.may_unload:
            budget.shared = self._memory
            others = [one for one in self._memory.holders if one is not model.budget]
            self._memory.holders = [*others, budget]
        with self._known.lock:
            model.budget, model.info = budget, engine.info

    def _note_progress(self, model: ServedModel, stage: str, share: float) -> None:
        """Record a load's progress, and run other models for as long as it took since the last time."""
        if self._known.is_stopping:
            raise ModelError("the server is stopping")
        with self._known.lock:
            model.progress = share
            # In words that follow "loading NAME: ".
            model.phase = "reading weights" if stage.startswith("Loading ") else stage[:1].lower() + stage[1:]
        self._known.num_loading_steps += 1
        if self._on_progress:
            self._on_progress(stage, share)
        now = time.perf_counter()
        if now - self._served_at < SLICE_S:
            return
        with self._interruptible.suspended():
            self.serve(now + min(1.0, now - self._served_at))
        self._served_at = time.perf_counter()

    def _unload_due(self) -> None:
        """Unload models that are unused and expired, or that a request wants unloaded."""
        now = time.monotonic()
        for model in self._known.list_all():
            if not model.is_loaded or model.num_uses or model.is_answering:
                continue
            if model.leaving or (not model.is_wanted and model.used_at + self._known.keep_s(model) <= now):
                self._unload(model)
        # Nobody uses an engine whose weights were freed for another model.
        for model in self._known.list_all():
            if model.engine and not model.is_loaded and not model.num_uses and not model.is_answering:
                self._known.retire(model)

    def _unload_for(self, holder: Holder | None) -> bool:
        """Unload a model to make room for another; return whether there was any.

        It is the one unused for longest among those without requests. If nothing runs at all, it may be one
        whose requests wait; they go on when it is loaded again.
        """
        now = time.monotonic()
        loaded = [model for model in self._known.list_all() if model.is_loaded and model.budget is not holder]
        free = [
            model
            for model in loaded
            if not model.is_answering and (not model.num_uses or now - model.used_at > GRACE_S)
        ]
        runs = any(model.engine and model.engine.is_running for model in loaded)
        if not free and holder is not None and not runs:
            free = loaded
        if not free:
            return False
        self._unload(min(free, key=lambda model: model.used_at))
        return True

    def _unload(self, model: ServedModel) -> None:
        engine = model.engine
        assert engine is not None
        engine.pause()
        self._memory.holders = [one for one in self._memory.holders if one is not model.budget]
        model.budget = None
        try:
            engine.unload()
        except Exception:
            log.error("while %s was unloaded", model.name, exc_info=True)
        with self._known.lock:
            model.is_loaded = False
            if not model.num_uses and not model.is_answering:
                self._known.retire(model)
            leaving, model.leaving = model.leaving, []
        engine = None
        _collect()
        log.info("unloaded %s", model.name)
        for future in leaving:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _drop(self, model: ServedModel, fault: str, raised: ModelLoadError | None = None) -> None:
        """Drop a model that cannot be loaded or has died, and end all its requests."""
        log.error("%s", fault)
        raised = raised or ModelLoadError("not_loadable", f"{model.name}: {fault}")
        if model.engine:
            model.engine.end(Failed("request", fault))
        with self._known.lock:
            waiting, model.waiting = list(model.waiting), deque()
            model.fault, model.progress = fault, None
        if model.is_loaded:
            self._unload(model)
        elif model.engine:
            self._known.retire(model)
            _collect()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(raised)


def _collect() -> None:
    """Free cyclic garbage, including objects frozen after the server's start, and MLX's free buffers."""
    collect_all()
    mx.clear_cache()
    # A model's other objects, such as its tokenizer, were many small allocations.
    return_freed()
