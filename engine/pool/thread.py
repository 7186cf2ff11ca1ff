"""The thread that owns MLX, where there are several models: it loads and unloads them, and gives them turns.

    unload what is due -> load what is wanted -> one model's turn

Models are loaded in the order in which they are asked for. One for which there is no memory waits until
others have answered, and meanwhile so do all requests that come: a busy model cannot keep it waiting forever.
No other wait of a model holds up requests for others.
"""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import mlx.core as mx

from config.freed_memory import return_freed
from engine.embedding.engine import EmbeddingEngine
from engine.engine import Engine
from engine.faults.watchdog import Watchdog
from engine.interface.errors import ModelLoadError
from engine.interface.events import Failed
from engine.loop import CALM_S, STOPPING, WakingInbox
from engine.memory.machine import usable_bytes
from engine.memory.sharing import Holder, SharedMemory
from engine.model.loading import ModelError, StartProgress, make_draft_loader, make_loader
from engine.pool.kept_sources import KeptSources, MakeSourcesFor
from engine.pool.model import AnyEngine, PooledModel
from engine.pool.models import PooledModels
from engine.pool.turns import SLICE_S, Turns
from engine.stations import EngineStation, StationClock, station

log = logging.getLogger("reprise.engine")

GRACE_S = 5.0
"""Seconds for which a model that was given to a request stays loaded until the request is queued."""

BLOCKED_S = 0.02
"""Seconds after which to look again whether a request fits into memory, if nothing else is to be done."""

SPARE_SHARE = 16
"""A model to be loaded needs 1/SPARE_SHARE more than its weights at least."""


class PoolThread:
    """Runs the engines of all models. Other threads call its public methods only.

    models: shared with other threads. make_sources: None to draft nothing. make_engine: makes an engine.
    on_death: called once on the thread with the fault's text if the thread dies.

    num_stalls: how often the watchdog found no progress.
    """

    def __init__(
        self,
        models: PooledModels,
        make_sources: MakeSourcesFor | None,
        make_engine: Callable[..., Engine],
        on_death: Callable[[str], None],
    ) -> None:
        settings = models.settings
        self.num_stalls = 0
        self._models = models
        self._on_death = on_death
        self._make_engine = make_engine
        self._sources = KeptSources(make_sources) if make_sources else None
        self._memory = SharedMemory(settings.memory_bytes or usable_bytes(), self._unload_for)
        self._turns: Turns[PooledModel] = Turns()
        self._current: PooledModel | None = None
        self._stations = StationClock(get_args(EngineStation))
        self._num_loading_steps = 0
        self._served_at = 0.0
        self._watchdog = Watchdog(settings.stall_seconds, self._progress_made, self._note_stall)
        self._thread = threading.Thread(target=self._run, name="reprise-engine", daemon=True)
        self._started = threading.Event()
        self._start_error: BaseException | None = None
        self._on_progress: StartProgress | None = None

    @property
    def has_started(self) -> bool:
        """Whether the first model has been loaded, or could not be."""
        return self._started.is_set()

    @property
    def stall(self) -> str | None:
        """Why the watchdog calls the thread stalled, if it does."""
        return self._watchdog.reason

    @property
    def station_s(self) -> dict[str, float]:
        """The thread's seconds by station."""
        return dict(self._stations.seconds)

    def start(self, on_progress: StartProgress | None = None) -> None:
        """Load the first model; returns when requests are accepted. Raises ModelError. See Engine.start()."""
        self._on_progress = on_progress
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            self._models.is_stopping = True
            self._thread.join()
            raise
        if self._start_error:
            self._thread.join()
            raise self._start_error

    def join(self) -> None:
        """Wait for the thread's end, if it runs."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._stations.start()
        try:
            self._load(self._models.first)
            self._load_beside()
        except ModelLoadError as fault:
            self._start_error = ModelError(str(fault))
        # Whoever waits for the start must be told.
        except BaseException as fault:
            self._start_error = fault
        try:
            if self._start_error is None:
                self._watchdog.start()
                self._started.set()
                while not self._is_done:
                    self._advance()
            self._end(STOPPING)
        # Whatever was raised, every live request must get its terminal event.
        except BaseException as fault:
            self._die(fault)
        finally:
            self._watchdog.stop()
            mx.clear_cache()
            # Streams left to the interpreter's exit can abort the process.
            mx.clear_streams()
            self._started.set()

    @property
    def _is_done(self) -> bool:
        return self._models.is_stopping and all(
            model.engine is None or model.engine.is_done for model in self._models.list_all()
        )

    def _advance(self) -> None:
        self._models.wake.clear()
        if self._models.is_stopping:
            self._refuse_waiting()
        self._unload_due()
        self._load_wanted()
        if not self._take_turn():
            self._rest()

    def _take_turn(self) -> bool:
        """Let the model that has had least take a step; return whether any has work."""
        working = [model for model in self._models.list_all() if model.engine and model.engine.has_work]
        model = self._turns.choose(working)
        if model is None or model.engine is None:
            return False
        engine, current = model.engine, self._current
        if current is not model and current and current.engine:
            current.engine.pause()
        self._current = model
        start = time.perf_counter()
        engine.turn()
        taken_s = time.perf_counter() - start
        if engine.is_blocked:
            # The others go first: what it waits for is theirs. Without others it looks again soon.
            taken_s = max(SLICE_S, taken_s)
            if len(working) == 1:
                self._models.wake.wait(BLOCKED_S)
        # After a piece of a pass the rows of others have waited for as long as they may.
        self._turns.charge(model, taken_s, passes_on=isinstance(engine, EmbeddingEngine))
        if engine.is_dead and not self._models.is_stopping:
            self._drop(model, "its engine has died, as the log says")
        return True

    def _rest(self) -> None:
        """Wait until there is something to do. Once it is calm, do what can be done in advance."""
        mx.clear_cache()
        with station("idle"):
            if self._models.wake.wait(min(CALM_S, self._due_in_s())):
                return
        ready = [model.engine for model in self._models.list_all() if model.is_loaded and model.engine]
        while (
            not self._models.wake.is_set() and self._due_in_s() and any(engine.prepare() for engine in ready)
        ):
            pass
        with station("idle"):
            self._models.wake.wait(self._due_in_s())

    def _load_wanted(self) -> None:
        """Load models in the order in which they were asked for, until one lacks memory."""
        for model in self._models.list_all():
            # Its weights were freed after it was given to a request, and before that came.
            if model.engine and not model.is_loaded and model.is_answering:
                with self._models.lock:
                    self._models.want(model)
        for model in tuple(self._models.wanted):
            if self._models.is_stopping:
                return
            with self._models.lock:
                while model.waiting and model.waiting[0].cancelled():
                    model.waiting.popleft()
            # One that leaves is unloaded first, once its requests have ended.
            if model.leaving or model.is_loaded or not model.is_wanted:
                continue
            try:
                self._models.lacks_memory = not self._make_room_for(model)
                if self._models.lacks_memory:
                    return
                self._give_waiting()
                self._load(model)
            except ModelLoadError as fault:
                self._drop(model, str(fault), fault)
        self._models.lacks_memory = False
        self._give_waiting()

    def _give_waiting(self) -> None:
        """Give models that are loaded to all who wait for them."""
        with self._models.lock:
            for model in tuple(self._models.wanted):
                while model.is_loaded and model.waiting and not model.leaving:
                    self._models.give(model, model.waiting.popleft())
                # Who came after it failed tries again.
                if not model.waiting and (model.is_loaded or not model.is_answering):
                    self._models.wanted.remove(model)

    def _make_room_for(self, model: PooledModel) -> bool:
        """Free memory for a model to be loaded; return whether there is enough. Raises ModelLoadError."""
        needed = model.found.folder.weight_bytes
        if draft_model := self._models.settings_of(model.name).draft_model:
            needed += self._models.catalogue.weight_bytes(draft_model)
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
        settings = self._models.settings
        named = [one for one in (settings.embedding_model, settings.rerank_model) if one is not None]
        if len({*settings.beside, settings.model_name}) <= len({*named}):
            raise ModelLoadError(
                "not_loadable", f"two models have the same name; rename a folder: {', '.join(named)}"
            )
        for name in settings.beside:
            model = self._models.find(name)
            if model is None or model.is_loaded:
                continue
            if model.found.folder.purpose == "generate" and not model.found.folder.fault:
                raise ModelLoadError("not_loadable", f"model {name!r} generates text: give it as --model")
            if not self._make_room_for(model):
                raise ModelLoadError("too_large", f"there is no memory for {name!r} (--memory-bytes)")
            self._load(model)

    def _load(self, model: PooledModel) -> None:
        """Load a model, with turns for others in between. Raises ModelLoadError."""
        fault = model.found.folder.fault
        if fault and model is not self._models.first:
            raise ModelLoadError("not_loadable", f"model {model.name!r} cannot be loaded: {fault}")
        log.info("loading %s", model.name)
        engine = model.engine
        with self._models.lock:
            model.progress, model.phase, model.fault = 0.0, None, None
        try:
            if engine is None:
                engine = self._new_engine(model)
                with self._models.lock:
                    if self._models.is_stopping:
                        raise ModelError("the server is stopping")
                    model.engine = engine
            engine.load(partial(self._note_progress, model))
        except ModelError as raised:
            # Without the traceback, which keeps what was loaded.
            told = str(raised)
        except Exception as raised:
            log.error("cannot load %s", model.name, exc_info=raised)
            told = f"{type(raised).__name__}: {raised}"
        else:
            self._note_loaded(model, engine)
            return
        finally:
            self._memory.loading_bytes = 0
        if self._models.is_stopping:
            raise ModelLoadError("draining", "the server is stopping")
        raise ModelLoadError("not_loadable", f"model {model.name!r} cannot be loaded: {told}")

    def _new_engine(self, model: PooledModel) -> AnyEngine:
        found, settings = model.found, self._models.settings_of(model.name)
        # The first may be downloaded at its first load.
        if model is not self._models.first or (model.num_loads and found.folder.path.is_dir()):
            settings = replace(settings, model=str(found.folder.path))
        inbox = WakingInbox(self._models.wake.set)
        if found.folder.purpose != "generate":
            settings = replace(settings, model=str(found.folder.path))
            return EmbeddingEngine(settings, model.name, inbox, partial(self._count_running, model))
        if found.adapter:
            settings = replace(settings, adapter_path=str(found.adapter))
        make_sources = self._sources.maker(settings) if self._sources else None
        # Its table is kept here.
        settings = replace(settings, ngram_table_file=None)
        return self._make_engine(
            settings,
            make_loader(settings, model.name),
            make_sources,
            make_draft_loader(settings),
            inbox=inbox,
        )

    def _count_running(self, beside: PooledModel) -> int:
        """Return how many other models have requests that decode or prefill."""
        others = [model.engine for model in self._models.list_all() if model is not beside]
        return sum(one.is_running for one in others if one and not isinstance(one, EmbeddingEngine))

    def _note_loaded(self, model: PooledModel, engine: AnyEngine) -> None:
        budget = model.budget = engine.memory_budget
        assert budget is not None
        budget.shared = self._memory
        self._memory.holders.append(budget)
        markers = engine.tokenizer.markers
        with self._models.lock:
            model.is_loaded, model.progress, model.info = True, None, engine.info
            model.can_call, model.can_think = markers.can_call, markers.can_think
            model.can_infill = engine.tokenizer.fim is not None
            model.num_loads += 1
            model.used_at, model.keep_s = time.monotonic(), None
        log.info("loaded %s", model.name)

    def _note_progress(self, model: PooledModel, stage: str, share: float) -> None:
        """Note how far a load is, and give turns to others for as long as it has taken since then."""
        if self._models.is_stopping:
            raise ModelError("the server is stopping")
        with self._models.lock:
            model.progress, model.phase = share, _phase(stage)
        self._num_loading_steps += 1
        if self._on_progress and not self._started.is_set():
            self._on_progress(stage, share)
        now = time.perf_counter()
        if now - self._served_at < SLICE_S:
            return
        until = now + min(1.0, now - self._served_at)
        while time.perf_counter() < until and self._take_turn():
            pass
        self._served_at = time.perf_counter()

    def _unload_due(self) -> None:
        """Unload what nobody uses any more and whose time is over, or that is asked to be unloaded."""
        now = time.monotonic()
        for model in self._models.list_all():
            if not model.is_loaded or model.num_uses or model.is_answering:
                continue
            if model.leaving or (not model.is_wanted and model.used_at + self._models.keep_s(model) <= now):
                self._unload(model)
        # Nobody uses an engine whose weights were freed for another model.
        for model in self._models.list_all():
            if model.engine and not model.is_loaded and not model.num_uses and not model.is_answering:
                self._models.retire(model)

    def _unload_for(self, holder: Holder | None) -> bool:
        """Unload a model for another's requests, or for one to be loaded; return whether there was any.

        The one unused for longest among those without requests. If nothing runs at all, then one whose
        requests wait: they go on when it is loaded again.
        """
        now = time.monotonic()
        loaded = [
            model for model in self._models.list_all() if model.is_loaded and model.budget is not holder
        ]
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

    def _unload(self, model: PooledModel) -> None:
        engine = model.engine
        assert engine is not None
        if self._current is model:
            engine.pause()
            self._current = None
        self._memory.holders = [one for one in self._memory.holders if one is not model.budget]
        model.budget = None
        try:
            engine.unload()
        except Exception:
            log.error("while %s was unloaded", model.name, exc_info=True)
        with self._models.lock:
            model.is_loaded = False
            model.num_unloads += 1
            if not model.num_uses and not model.is_answering:
                self._models.retire(model)
            leaving, model.leaving = model.leaving, []
        engine = None
        _collect()
        log.info("unloaded %s", model.name)
        for future in leaving:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _drop(self, model: PooledModel, fault: str, raised: ModelLoadError | None = None) -> None:
        """Let go of a model that cannot be loaded or has died, and end all requests that it has."""
        log.error("%s", fault)
        raised = raised or ModelLoadError("not_loadable", f"{model.name}: {fault}")
        if model.engine:
            model.engine.end(Failed("request", fault))
        with self._models.lock:
            waiting, model.waiting = list(model.waiting), deque()
            model.fault, model.progress = fault, None
        if model.is_loaded:
            self._unload(model)
        elif model.engine:
            self._models.retire(model)
            _collect()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(raised)

    def _refuse_waiting(self) -> None:
        """Tell who waits for models that the server is stopping."""
        with self._models.lock:
            futures: list[Future[Any]] = []
            for model in self._models.list_all():
                futures += [*model.waiting, *model.leaving]
                model.waiting, model.leaving = deque(), []
            self._models.wanted.clear()
        refused = ModelLoadError("draining", "the server is stopping")
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(refused)

    def _end(self, failed: Failed) -> None:
        """End all requests, unload all models, and save what drafters learned."""
        self._refuse_waiting()
        for model in self._models.list_all():
            if model.engine:
                model.engine.end(failed)
        if self._sources:
            self._sources.save()

    def _die(self, fault: BaseException) -> None:
        log.critical("the engine's thread died", exc_info=fault)
        text = self._models.fault = f"{type(fault).__name__}: {fault}"
        for model in self._models.list_all():
            if model.engine:
                model.engine.abandon(text)
        self._refuse_waiting()
        self._on_death(text)

    def _due_in_s(self) -> float:
        """Return in how many seconds to look again for models to unload, at most a day."""
        now, most_s = time.monotonic(), CALM_S if self._models.wanted else 86_400.0
        idle = [
            model
            for model in self._models.list_all()
            if model.is_loaded and not model.num_uses and not model.is_wanted
        ]
        return max(0.0, min([most_s, *(model.used_at + self._models.keep_s(model) - now for model in idle)]))

    def _progress_made(self) -> tuple[int, ...] | None:
        """Return numbers that grow with progress, None without work. Called on the watchdog's thread."""
        with self._models.lock:
            models = self._models.list_all()
            engines = [model.engine for model in models if model.engine]
        is_loading = any(model.progress is not None for model in models)
        if not is_loading and not any(engine.num_live for engine in engines):
            return None
        ended, progressed = (sum(e.num_ended for e in engines), sum(e.num_progressed for e in engines))
        return ended, progressed, self._num_loading_steps

    def _note_stall(self) -> None:
        self.num_stalls += 1


def _collect() -> None:
    """Free what only cycles keep, also of what the server froze after its start, and MLX's free buffers."""
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()
    gc.collect()
    if is_frozen:
        gc.freeze()
    mx.clear_cache()
    # What a model had besides arrays, such as its tokenizer, was many small allocations.
    return_freed()


def _phase(stage: str) -> str:
    """Return what a load is at, in words that follow "loading NAME: "."""
    return "reading weights" if stage.startswith("Loading ") else stage[:1].lower() + stage[1:]
