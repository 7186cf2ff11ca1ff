"""The loop on the thread that owns MLX, for one model or many.

    load and unload what is due -> let one model take its messages and run steps

Models that have work share the thread's time (pool/watchdog.py). A single one runs step after step until a
message comes or something is due.
"""

import logging
import threading
from collections.abc import Callable
from time import perf_counter
from typing import get_args

import mlx.core as mx

from reprise.engine.interface.models import StartProgress
from reprise.engine.interface.spans import EngineSpan, SpanClock, span
from reprise.engine.interface.status import STALL_S
from reprise.engine.memory.pressure import MemoryPressure
from reprise.engine.pool.model_engine import STOPPING
from reprise.engine.pool.residency import Residency
from reprise.engine.pool.served_models import KnownModels, ServedModel
from reprise.engine.pool.watchdog import SLICE_S, TimeShares, Watchdog

log = logging.getLogger("reprise.engine")

CALM_S = 0.5
"""Idle seconds before grammar vocabulary and put-off trials. A request may wait for one part."""

BLOCKED_S = 0.02
"""Seconds after which to look again whether a request fits into memory, if nothing else is to be done."""


class Loop:
    """Owns the thread that owns MLX. Other threads call its public methods only.

    known: all models. residency: loads and unloads them.
    on_death: called once on the thread with the exception's text if the thread dies.
    num_stalls: how often the watchdog found no progress. pressure: of the machine's memory.
    """

    def __init__(self, known: KnownModels, residency: Residency, on_death: Callable[[str], None]) -> None:
        self.num_stalls = 0
        self.pressure = MemoryPressure(lambda: known.wake.set())
        self._known, self._residency, self._on_death = known, residency, on_death
        residency.serve = self._serve
        self._shares: TimeShares[ServedModel] = TimeShares()
        self._current: ServedModel | None = None
        self._until = 0.0
        self._spans = SpanClock(get_args(EngineSpan))
        self._watchdog = Watchdog(STALL_S, self._progress_made, self._note_stall, self.pressure.look)
        self._thread = threading.Thread(target=self._run, name="reprise-engine", daemon=True)
        self._started = threading.Event()
        self._start_error: BaseException | None = None
        self._on_progress: StartProgress | None = None

    @property
    def has_started(self) -> bool:
        """Whether the models that are to be there from the start have been loaded."""
        return self._started.is_set() and self._start_error is None

    @property
    def stall(self) -> str | None:
        """Why the watchdog considers the thread stalled, in words; None if it does not."""
        return self._watchdog.reason

    @property
    def span_s(self) -> dict[str, float]:
        """The seconds that the thread has spent in each span."""
        return dict(self._spans.seconds)

    def start(self, on_progress: StartProgress | None = None) -> None:
        """Start the thread and load the first models; returns when requests are accepted. Raises ModelError.

        on_progress: called on the thread with the name and the completed share of each slow stage.
        """
        self._on_progress = on_progress
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            # Ctrl-C while loading. Exiting with the thread at work could abort the process.
            self.stop(0)
            raise
        if self._start_error:
            self._thread.join()
            raise self._start_error

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, give running ones drain_s seconds to finish, then end the thread."""
        with self._known.lock:
            self._known.is_stopping = True
            for model in self._known.list_all():
                if model.engine:
                    model.engine.begin_stop(drain_s)
        self._residency.interrupt()
        self._known.wake.set()
        self.join()

    def join(self) -> None:
        """Wait until the thread has ended, if it runs."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._spans.start()
        try:
            try:
                self._residency.begin(self._on_progress)
            # Whoever waits for the start must be told.
            except BaseException as fault:
                self._start_error = fault
            else:
                self._watchdog.start()
                self._started.set()
                while not self._is_done:
                    self._advance()
            self._end()
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
        return self._known.is_stopping and all(
            model.engine is None or model.engine.is_done for model in self._known.list_all()
        )

    def _advance(self) -> None:
        self._known.wake.clear()
        self._residency.advance()
        if not self._run_one(perf_counter() + SLICE_S):
            self._rest()

    def _serve(self, until: float) -> None:
        while perf_counter() < until and self._run_one(until):
            pass

    def _run_one(self, until: float) -> bool:
        """Run the model that has had the least time: one step, or until the deadline if no other has work.

        Returns whether any has work.
        """
        if self.pressure.is_pending:
            self._relieve()
        working = [model for model in self._known.list_all() if model.engine and model.engine.has_work]
        model = self._shares.choose(working)
        if model is None or model.engine is None:
            return False
        engine, current = model.engine, self._current
        if current is not model and current and current.engine:
            current.engine.pause()
        self._current, self._until = model, until
        start, is_alone = perf_counter(), len(working) == 1
        engine.run(self._is_over if is_alone and not engine.is_blocked else lambda: True)
        taken_s = perf_counter() - start
        if engine.is_blocked:
            # Others go first, as they hold the memory it waits for. Without others it retries soon.
            taken_s = max(SLICE_S, taken_s)
            if is_alone:
                self._known.wake.wait(BLOCKED_S)
        # After a slice of a pass, other models' rows have waited long enough.
        self._shares.charge(model, taken_s, passes_on=engine.passes_on)
        if engine.lifecycle.is_dead:
            self._lose(model)
        return True

    @span("memory")
    def _relieve(self) -> None:
        """Give cached prefixes back, those of models unused for longest first."""
        models = sorted(self._known.list_all(), key=lambda one: (one.is_answering, one.used_at))
        self.pressure.respond([model.budget for model in models if model.budget])

    def _lose(self, model: ServedModel) -> None:
        """Drop a model whose engine has died, or stop if it is the only one."""
        if self._known.may_unload:
            self._residency.lose(model)
            return
        self._known.is_stopping = True
        # Another thread may have ended it before: Engine.abort().
        if self._known.fault is None and model.engine:
            self._known.fault = model.engine.lifecycle.fault
            self._on_death(str(self._known.fault))

    def _is_over(self) -> bool:
        return self._known.wake.is_set() or perf_counter() >= self._until

    def _rest(self) -> None:
        """Read ahead, and wait for work. When idle for a while, do work in advance."""
        wake, residency = self._known.wake, self._residency
        ready = [model.engine for model in self._known.list_all() if model.is_loaded and model.engine]
        for engine in ready:
            # What waits for memory to be loaded is looked at often.
            while not (wake.is_set() or self._known.wanted) and residency.due_in_s and engine.read_next():
                pass
            engine.stop_reading()
        mx.clear_cache()
        with span("idle"):
            if wake.wait(min(CALM_S, residency.due_in_s)):
                return
        while (
            not wake.is_set() and residency.due_in_s and any(engine.prepare(wake.is_set) for engine in ready)
        ):
            pass
        with span("idle"):
            wake.wait(residency.due_in_s)

    def _end(self) -> None:
        """End all requests, and free all models."""
        self._known.refuse_waiting()
        for model in self._known.list_all():
            if model.engine:
                model.engine.end(STOPPING)
        self._residency.end()

    def _die(self, fault: BaseException) -> None:
        log.critical("the engine's thread died", exc_info=fault)
        text = self._known.fault = f"{type(fault).__name__}: {fault}"
        for model in self._known.list_all():
            if model.engine:
                model.engine.abandon(text)
        self._known.refuse_waiting()
        self._on_death(text)

    def _progress_made(self) -> tuple[int, ...] | None:
        """Return numbers that grow with progress, None without work. Called on the watchdog's thread."""
        with self._known.lock:
            models = self._known.list_all()
            engines = [model.engine for model in models if model.engine]
        is_loading = any(model.progress is not None for model in models)
        if not is_loading and not any(engine.lifecycle.num_live for engine in engines):
            return None
        ended = sum(engine.lifecycle.num_ended for engine in engines)
        progressed = sum(engine.worker.num_progressed for engine in engines)
        return ended, progressed, self._known.num_loading_steps

    def _note_stall(self) -> None:
        self.num_stalls += 1
