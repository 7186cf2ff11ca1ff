"""The engine's public face. Every method may be called from any thread; the worker runs on its own."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

import mlx.core as mx

from config.settings import Settings
from drafters.base import TableFileError
from engine.faults.watchdog import Watchdog
from engine.loop import Call, Cancel, Inbox, Loop, Stop, Submit
from engine.model.loading import (
    Load,
    LoadedModel,
    ModelError,
    StartProgress,
    display_name,
    make_draft_loader,
    make_loader,
)
from engine.model.tokenizer import Tokenizer
from engine.request import (
    RETRY_AFTER_S,
    EngineCounts,
    EngineError,
    EngineStatus,
    Event,
    Failed,
    GenerationRequest,
    Grammar,
    ModelInfo,
    SharedTableError,
    Sink,
)
from engine.sampling.grammar import Grammars
from engine.scheduler.retry_after import Pace
from engine.setup import MakeSources, make_worker
from engine.speculative import shared_table as memory
from engine.speculative.proposers import DraftSources
from engine.speculative.step_costs import StepCosts
from engine.stats import EngineStats
from engine.worker import Worker

log = logging.getLogger("reprise.engine")


class Engine:
    """Owns the thread that owns MLX: loads the model there, feeds it requests, tells of its death.

    load: makes the model; called on the worker's thread. Without it, the model that the settings name.
    make_sources: makes the drafters; without it nothing is drafted.
    load_draft: makes the draft model; without it, the one that the settings name, if they name one.
    costs: what steps cost; without it, that is measured at the first start with a model.
    on_death: called once, on the worker's thread, with the fault's text if the worker dies.
    """

    def __init__(
        self,
        settings: Settings,
        load: Load | None = None,
        on_death: Callable[[str], None] | None = None,
        make_sources: MakeSources | None = None,
        load_draft: Load | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        self.settings = settings
        self._make_sources = make_sources
        self._costs = costs
        self.on_death = on_death
        self._load = load or make_loader(settings)
        self._load_draft = load_draft or make_draft_loader(settings)
        self._inbox: Inbox = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._state: Literal["loading", "ready", "draining", "dead"] = "loading"
        self._fault: str | None = None
        self._num_live = 0
        self._num_ended = 0
        self._pace = Pace()
        self._drained_at = 0.0
        self._watchdog = Watchdog(settings.stall_seconds, self._progress_made, self._note_stall)
        self._loaded: LoadedModel | None = None
        self._grammars: Grammars
        self._worker: Worker | None = None
        self._stats = EngineStats()
        self._thread = threading.Thread(target=self._run, name="reprise-engine", daemon=True)
        self._started = threading.Event()
        self._start_error: BaseException | None = None
        self._on_progress: StartProgress | None = None
        self._abandoned = False

    @property
    def info(self) -> ModelInfo:
        """The loaded model. Raises RuntimeError before start() has returned."""
        return self._require_loaded().info

    @property
    def costs(self) -> StepCosts:
        """What steps cost, as the engine knows it now. Raises RuntimeError before start() has returned."""
        if self._worker is None:
            raise RuntimeError("the engine has not been started")
        return self._worker.planner.costs

    @property
    def tokenizer(self) -> Tokenizer:
        """The loaded model's tokenizer. Raises RuntimeError before start() has returned."""
        return self._require_loaded().tokenizer

    def start(self, on_progress: StartProgress | None = None) -> None:
        """Load the model and begin; returns when requests can be taken. Raises ModelError.

        on_progress: called on the engine's thread with each thing that takes time, one after the other.
        """
        self._on_progress = on_progress
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            # Ctrl-C while loading. Exiting with the thread at work could abort the process.
            self._abandoned = True
            self._thread.join()
            raise
        if self._start_error:
            self._thread.join()
            raise self._start_error

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a request. Its sink gets any number of deltas, then exactly one terminal event.

        Raises EngineError if the queue is full, the engine drains or is dead; the sink then gets nothing.
        """
        with self._lock:
            if self._state == "dead":
                raise EngineError("engine_dead", f"the engine has stopped: {self._fault}")
            if self._state != "ready":
                raise EngineError("draining", "the server is not taking requests now", self._retry_after_s())
            capacity = self.settings.max_rows + self.settings.max_queue
            if self._num_live >= capacity:
                raise EngineError(
                    "queue_full",
                    f"{self._num_live} requests are running or waiting; try again later",
                    self._retry_after_s(),
                )
            self._num_live += 1
            self._inbox.put(Submit(request, self._counted(request.id, sink)))

    def check_grammar(self, grammar: Grammar) -> None:
        """Compile a grammar, so that a request with it starts at once. Raises GrammarError if that fails."""
        self._grammars.check(grammar)

    def cancel(self, request_id: str) -> None:
        """End a request early; its sink gets Failed("cancelled"), unless it has ended or is unknown."""
        self._inbox.put(Cancel(request_id))

    def status(self) -> EngineStatus:
        """What /health needs, as of now."""
        worker = self._worker
        running = len(worker.members) + len(worker.request_queue.prefilling) if worker else 0
        with self._lock:
            waiting = max(0, self._num_live - running)
            status = EngineStatus(self._state, running, waiting, self._fault, self._retry_after_s())
        if (stall := self._watchdog.reason) and status.state in ("ready", "draining"):
            return replace(status, state="stalled", fault=stall)
        return status

    def counts(self) -> EngineCounts:
        """What it has counted, and what memory MLX holds, as of now."""
        return self._stats.counts()

    def prefix_status(self) -> dict[str, int]:
        """Counts of the prefix cache, by the names of PrefixStatus; empty without one."""
        worker = self._worker
        status = worker.prefix_lookup.status() if worker else None
        return asdict(status) if status else {}

    def table_status(self) -> dict[str, Any]:
        """Counts of the n-gram table that requests share. Raises SharedTableError."""
        return memory.find_table(self._sources()).status()

    def table_reset(self) -> None:
        """Forget it, and whatever else drafters remember of finished requests. Raises SharedTableError."""
        self._between_steps(partial(memory.forget, self._sources()))

    def table_save(self) -> str:
        """Write it to the file of the settings; returns what was done. Raises SharedTableError."""
        return str(self._between_steps(memory.find_table(self._sources()).save))

    def table_load(self) -> str:
        """Read it from there; returns what was done. Raises SharedTableError."""
        return str(self._between_steps(memory.find_table(self._sources()).load))

    def margin(self, tokens: tuple[int, ...]) -> float:
        """By how much the likeliest token to follow leads the second: a difference of logits, >= 0.

        For judging where two answers part: a margin near 0 is a tie that rounding decides.
        """

        def measure() -> float:
            logits = self._require_loaded().model(mx.array([list(tokens)]))[0, -1].astype(mx.float32)
            top: list[float] = mx.sort(logits)[-2:].tolist()  # type: ignore[assignment]
            return top[1] - top[0]

        return float(self._between_steps(measure))

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, let running ones finish for drain_s seconds, then end the thread.

        Requests that still wait for a row, and those that do not finish in time, get Failed("draining").
        """
        with self._lock:
            if self._state != "dead":
                self._state = "draining"
                self._drained_at = time.perf_counter() + drain_s
        self._inbox.put(Stop(drain_s))
        if self._thread.is_alive():
            self._thread.join()

    def _retry_after_s(self) -> float:
        """When a batch of requests will have ended, or, while draining, when another server may be there."""
        if self._state == "draining":
            return max(RETRY_AFTER_S, self._drained_at - time.perf_counter())
        return self._pace.wait_s(self.settings.max_rows, RETRY_AFTER_S)

    def _require_loaded(self) -> LoadedModel:
        if self._loaded is None:
            raise RuntimeError("the engine has not been started")
        return self._loaded

    def _sources(self) -> DraftSources:
        if self._worker is None:
            raise SharedTableError("the engine is not running")
        return self._worker.drafting.sources

    def _between_steps(self, action: Callable[[], Any]) -> Any:
        """Have the worker do something, and wait for its outcome."""
        call = Call(action, Future())
        with self._lock:
            if self._state != "ready":
                raise SharedTableError(f"the engine is {self._state}")
            self._inbox.put(call)
        try:
            return call.outcome.result()
        except TableFileError as fault:
            raise SharedTableError(str(fault)) from fault

    def _counted(self, request_id: str, sink: Sink) -> Sink:
        def counted(event: Event) -> None:
            if event.is_terminal:
                with self._lock:
                    self._num_live -= 1
                    self._num_ended += 1
                    self._pace.note_end()
            try:
                sink(event)
            # A sink that breaks its promise harms nobody but itself.
            except Exception:
                log.error("the sink of request %s raised", request_id, exc_info=True)

        return counted

    def _run(self) -> None:
        try:
            worker = self._load_worker()
            if worker:
                self._serve_until_death(worker)
        finally:
            self._watchdog.stop()
            self._worker = None
            mx.clear_cache()
            # Streams left to the interpreter's exit can abort the process.
            mx.clear_streams()

    def _load_worker(self) -> Worker | None:
        """Load the model and be ready; None if that failed, which start() then raises."""
        try:
            self._loaded = self._load(self._loading(self.settings.model_source))
            self._grammars = Grammars(self._loaded.tokenizer)
            draft_name = self.settings.draft_model or "the draft model"
            draft = self._load_draft(self._loading(draft_name)) if self._load_draft else None
            self._worker = make_worker(
                self._loaded, self.settings, self._make_sources, draft, self._costs, self._progress
            )
            self._stats = self._worker.stats
            memory.restore(self._sources(), self.settings)
        except BaseException as fault:
            self._start_error = (
                fault if isinstance(fault, ModelError) else ModelError(f"cannot load: {fault}")
            )
            self._started.set()
            return None
        with self._lock:
            if self._state == "loading":
                self._state = "ready"
        self._watchdog.start()
        self._started.set()
        return self._worker

    def _progress_made(self) -> tuple[int, int] | None:
        """What grows as work goes on; None while there is none. Called on the watchdog's thread."""
        worker = self._worker
        with self._lock:
            if worker is None or self._num_live == 0:
                return None
            return worker.num_progressed, self._num_ended

    def _note_stall(self) -> None:
        self._stats.num_stalls += 1

    def _loading(self, source: str) -> Callable[[float], None]:
        return partial(self._progress, f"Loading {display_name(source)}")

    def _progress(self, what: str, share: float) -> None:
        if self._abandoned:
            raise ModelError("loading was interrupted")
        if self._on_progress:
            self._on_progress(what, share)

    def _serve_until_death(self, worker: Worker) -> None:
        loop = Loop(worker, self._inbox, self.tokenizer, self._grammars)
        try:
            loop.run()
            memory.save(self._sources(), self.settings)
        # Whatever it is, everyone who waits must hear of it.
        except BaseException as fault:
            self._die(loop, fault)
        finally:
            worker.prefix_lookup.close()

    def _die(self, loop: Loop, fault: BaseException) -> None:
        log.critical("the engine's thread died", exc_info=fault)
        with self._lock:
            self._state, self._fault = "dead", f"{type(fault).__name__}: {fault}"
        loop.end_all(Failed("engine", f"the engine has stopped: {self._fault}"))
        if self.on_death:
            self.on_death(str(self._fault))
