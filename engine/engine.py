"""The engine as the server sees it. Any thread may call its methods; the worker has a thread of its own."""

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from config.model_settings import display_name
from config.settings import Settings
from drafters.base import TableFileError
from engine.faults.watchdog import Watchdog
from engine.interface.errors import SharedTableError
from engine.interface.events import Event, Failed, Sink
from engine.interface.models import ModelInfo
from engine.interface.request import GenerationRequest, Grammar
from engine.interface.status import EngineCounts, EngineStatus
from engine.lifecycle import Lifecycle
from engine.loop import Call, Cancel, Inbox, Loop, Stop, Submit, refuse_all
from engine.memory.budget import MemoryBudget
from engine.model.loading import (
    Load,
    LoadedModel,
    ModelError,
    Progress,
    StartProgress,
    make_draft_loader,
    make_loader,
)
from engine.parked import ParkedWorker
from engine.sampling.grammar import Grammars
from engine.setup import FindHead, MakeSources, make_worker
from engine.speculative import kept_acceptance, shared_table
from engine.speculative.costs.exact_widths import Exactness, Shape, Tried, find_exact_shapes
from engine.speculative.costs.step_costs import StepCosts
from engine.speculative.heads.finding import find_given_head, find_head
from engine.speculative.proposers import DraftSources, Proposers
from engine.stats import EngineStats
from engine.text.tokenizer import Tokenizer
from engine.worker import Worker

if TYPE_CHECKING:
    # Importing it makes the engine's functions on caches choose between one machine and several.
    from engine.distributed.rank_0 import Ranks

log = logging.getLogger("reprise.engine")


class Engine:
    """Owns the thread that owns MLX: loads the model there, hands it requests, and reports its death.

    load: loads the target model, on the engine's thread; by default the model that the settings name.
    make_sources: makes the drafters; without it nothing is drafted.
    load_draft: loads the draft model; by default the one that the settings name, if any.
    find_head: finds the head that drafts from the target's states; by default in the folders that they name.
    costs: what steps cost; by default they are measured, while the engine is idle, and kept on disk.
    waits_for_costs: whether start() returns only when they are known.
    inbox: takes other threads' messages; of an engine whose thread is a pool's.
    ranks: the machines that share the target model; they then load it.

    The thread is this engine's own from start() to stop(), or that of a pool, which calls load(), turn(),
    pause(), unload() and end() on it.

    attached: what its users keep beside it; it ends with the engine.
    on_death: if set, called once on the engine's thread with the fault's text if that thread dies.
    """

    def __init__(
        self,
        settings: Settings,
        load: Load | None = None,
        make_sources: MakeSources | None = None,
        load_draft: Load | None = None,
        find_head: FindHead | None = None,
        costs: StepCosts | None = None,
        waits_for_costs: bool = False,
        inbox: Inbox | None = None,
        ranks: "Ranks | None" = None,
    ) -> None:
        self.settings = settings
        self.attached: dict[str, Any] = {}
        self._make_sources = make_sources
        self._costs, self._waits_for_costs = costs, waits_for_costs
        self.on_death: Callable[[str], None] | None = None
        self._ranks = ranks
        if ranks:
            load, ranks.abort = ranks.load, self.abort
        self._load = load or make_loader(settings)
        self._load_draft = load_draft or make_draft_loader(settings)
        self._find_head = find_head
        self._inbox: Inbox = inbox or queue.SimpleQueue()
        self._lifecycle = Lifecycle(settings.max_rows + settings.max_queue)
        self._watchdog = Watchdog(settings.stall_seconds, self._progress_made, self._note_stall)
        self._loaded: LoadedModel | None = None
        self._grammars: Grammars
        self._worker: Worker | None = None
        self._loop: Loop | None = None
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
        """The costs of steps as learned so far. Raises RuntimeError before start() has returned."""
        if self._worker is None:
            raise RuntimeError("the engine has not been started")
        return self._worker.planner.costs

    @property
    def tokenizer(self) -> Tokenizer:
        """The loaded model's tokenizer. Raises RuntimeError before start() has returned."""
        return self._require_loaded().tokenizer

    def start(self, on_progress: StartProgress | None = None) -> None:
        """Load the model; returns when requests are accepted. Raises ModelError.

        on_progress: called on the engine's thread with the name and the completed share of each slow stage.
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

        Raises EngineError if the queue is full or the engine is draining or dead, and GrammarError if its
        grammar, compiled here if it has not been, cannot be used; the sink then gets nothing.
        """
        if request.grammar and request.grammar.compiled is None:
            # The engine's thread must never wait for a compilation.
            request = replace(request, grammar=self.compile_grammar(request.grammar))
        with self._lifecycle.accepting():
            self._inbox.put(Submit(request, self._counted(request.id, sink)))

    def compile_grammar(self, grammar: Grammar) -> Grammar:
        """Return the grammar as compiled, for requests. May take long. Raises GrammarError."""
        return self._grammars.compile(grammar)

    def cancel(self, request_id: str) -> None:
        """End a request early; its sink gets Failed("cancelled"), unless it has ended or is unknown."""
        self._inbox.put(Cancel(request_id))

    def status(self) -> EngineStatus:
        """Return the present state, for /health."""
        worker = self._worker
        status = self._lifecycle.status(len(worker.running) if worker else 0)
        if (stall := self._watchdog.reason) and status.state in ("ready", "draining"):
            return replace(status, state="stalled", fault=stall)
        return status

    def counts(self) -> EngineCounts:
        """Return the engine's counts, and the memory that MLX holds now."""
        counts = self._stats.counts()
        return replace(counts, by_rank=self._ranks.count()) if self._ranks else counts

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the prefix caches' counts, by "target" and "draft" and the names of PrefixStatus."""
        worker = self._worker
        return {model: asdict(status) for model, status in worker.prefix_status().items()} if worker else {}

    def table_status(self) -> dict[str, Any]:
        """Return the counts of the shared n-gram table. Raises SharedTableError."""
        return shared_table.find_table(self._sources()).status()

    def table_reset(self) -> None:
        """Drop everything that drafters learned from finished requests. Raises SharedTableError."""
        self._between_steps(partial(shared_table.reset, self._proposers()))

    def table_save(self) -> str:
        """Save the table to the settings' file; return a sentence that says so. Raises SharedTableError."""
        save = shared_table.find_table(self._sources()).save

        def learn_and_save() -> str:
            if self._worker:
                self._worker.proposers.work.finish()
            return save()

        return str(self._between_steps(learn_and_save))

    def table_load(self) -> str:
        """Load the table from the settings' file; return a sentence that says so. Raises SharedTableError."""
        return str(self._between_steps(shared_table.find_table(self._sources()).load))

    def margin(self, tokens: tuple[int, ...]) -> float:
        """Return the difference between the two highest logits of the token that follows, >= 0.

        Explains why two answers diverge: a margin near 0 is a near-tie, which rounding decides.
        """

        def measure() -> float:
            logits = self._require_loaded().model(mx.array([list(tokens)]))[0, -1].astype(mx.float32)
            top: list[float] = mx.sort(logits)[-2:].tolist()  # type: ignore[assignment]
            return top[1] - top[0]

        return float(self._between_steps(measure))

    def find_exact(self, shapes: Iterable[Shape], progress: Progress = lambda _: None) -> Exactness:
        """Try of which (rows, width) the logits equal those of width 1 byte for byte; takes a while.

        progress: called on the engine's thread with the share that is done.
        """

        def find() -> Exactness:
            loaded, kv_bits = self._require_loaded(), self.settings.kv_bits
            info, sharing = loaded.info, loaded.find_sharing(kv_bits)
            tried = Tried(loaded.model, sharing, kv_bits, info.vocab_size, info.context_tokens)
            return find_exact_shapes(tried, shapes, progress)

        found: Exactness = self._between_steps(find)
        return found

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, give running ones drain_s seconds to finish, then end the thread.

        Requests that wait for a row, and those that do not finish in time, get Failed("draining").
        """
        self.begin_stop(drain_s)
        if self._thread.is_alive():
            self._thread.join()

    def abort(self, reason: str) -> None:
        """End every request at once, on any thread: the engine's own waits for what will never come.

        The process must end after this.
        """
        self._lifecycle.die(reason)
        failed = Failed("engine", f"the engine has stopped: {reason}")
        for sequence in self._worker.live if self._worker else ():
            sequence.fail(failed)
        refuse_all(self._inbox, failed)
        if self.on_death:
            self.on_death(reason)

    def _require_loaded(self) -> LoadedModel:
        if self._loaded is None:
            raise RuntimeError("the engine has not been started")
        return self._loaded

    def _proposers(self) -> Proposers:
        if self._worker is None:
            raise SharedTableError("the engine is not running")
        return self._worker.proposers

    def _sources(self) -> DraftSources:
        return self._proposers().sources

    def _between_steps(self, action: Callable[[], Any]) -> Any:
        """Call a function on the engine's thread between two steps, and return its result."""
        call = Call(action, Future())
        with self._lifecycle.held() as state:
            if state != "ready":
                raise SharedTableError(f"the engine is {state}")
            self._inbox.put(call)
        try:
            return call.outcome.result()
        except TableFileError as fault:
            raise SharedTableError(str(fault)) from fault

    def _counted(self, request_id: str, sink: Sink) -> Sink:
        counted, explain = self._lifecycle.counting(request_id, sink), self._ranks and self._ranks.explain
        if not explain:
            return counted

        def explained(event: Event) -> None:
            if isinstance(event, Failed) and event.kind == "request" and (reason := explain()):
                event = replace(event, kind="engine", message=f"the engine has stopped: {reason}")
            counted(event)

        return explained

    def begin_stop(self, drain_s: float) -> None:
        """Begin what stop() does, and do not wait for its end."""
        self._lifecycle.begin_draining(drain_s)
        self._inbox.put(Stop())

    def abandon(self, fault: str) -> None:
        """End all requests as failed, because the thread that owns MLX has died of a fault."""
        self._lifecycle.die(fault)
        if self._loop:
            self._loop.end_all(Failed("engine", f"the engine has stopped: {fault}"))

    def load(self, on_progress: StartProgress | None = None) -> None:
        """Load the model and set up its worker, on the thread that owns MLX. Raises ModelError.

        Requests that came before an unload() go on.
        on_progress: see start().
        """
        self._on_progress = on_progress
        try:
            loaded = self._loaded = self._load(self._loading(self.settings.model_source))
            self._grammars = Grammars(loaded.tokenizer)
            draft_name = self.settings.draft_model or "the draft model"
            given = find_given_head(self.settings)
            draft = self._load_draft(self._loading(draft_name)) if self._load_draft and not given else None
            worker = make_worker(
                loaded,
                self.settings,
                self._make_sources,
                draft,
                self._costs,
                self._waits_for_costs,
                self._progress,
                self._find_head or partial(find_head, self.settings, given),
            )
            shared_table.restore(worker.proposers.sources, self.settings)
            shared_table.restore_history(worker.proposers)
            kept_acceptance.restore(worker.proposers.global_counts, self._acceptance_file(loaded))
            if self._ranks:
                self._ranks.begin_serving()
        except BaseException as fault:
            self._forget()
            if isinstance(fault, ModelError):
                raise
            raise ModelError(f"cannot load: {fault}") from fault
        self._worker, self._stats = worker, worker.stats
        if self._loop is None:
            self._loop = Loop(worker, self._inbox, self._lifecycle, loaded.tokenizer, self._grammars)
        else:
            for sequence in self._loop.worker.live:
                worker.submit(sequence)
            self._loop.worker = worker
        self._lifecycle.begin_ready()

    @property
    def memory_budget(self) -> MemoryBudget | None:
        """The estimates of what its requests take; None while the model is not loaded."""
        return self._worker.queue.memory_budget if self._worker else None

    @property
    def has_work(self) -> bool:
        """Whether turn() would do anything. On the thread that owns MLX."""
        return self._loop is not None and self._loop.has_work

    @property
    def is_done(self) -> bool:
        """Whether it has stopped, or died. On the thread that owns MLX."""
        return self._loop is None or self._loop.is_done or self.is_dead

    @property
    def is_dead(self) -> bool:
        """Whether it has died of a fault."""
        return self._lifecycle.is_dead

    @property
    def is_running(self) -> bool:
        """Whether requests decode or prefill. On the thread that owns MLX."""
        return self._worker is not None and bool(self._worker.running)

    @property
    def is_blocked(self) -> bool:
        """Whether requests wait for memory that other models hold. On the thread that owns MLX."""
        return self._worker is not None and self._worker.is_blocked

    @property
    def num_live(self) -> int:
        """The requests that have not ended."""
        return self._lifecycle.num_live

    @property
    def num_ended(self) -> int:
        """The requests that have ended."""
        return self._lifecycle.num_ended

    @property
    def num_progressed(self) -> int:
        """A number that grows with every committed token and every prompt chunk."""
        return self._worker.num_progressed if self._worker else 0

    def turn(self) -> None:
        """Take the messages that have come and run a step, on the thread that owns MLX; on a fault, die."""
        assert self._loop is not None
        try:
            self._loop.turn()
        # Whatever was raised, every live request must get its terminal event.
        except BaseException as fault:
            self._die(fault)

    def pause(self) -> None:
        """Wait for what is in flight, before another engine's turn on the thread that owns MLX."""
        if self._worker and self._loop:
            try:
                self._worker.pause()
            except BaseException as fault:
                self._die(fault)

    def prepare(self) -> bool:
        """Do a part of what can be done while there is no work; returns whether there may be more."""
        return self._loop is not None and self._loop.prepare()

    def unload(self) -> None:
        """Free the model, on the thread that owns MLX. Requests that wait go on after the next load()."""
        worker, loop = self._worker, self._loop
        if worker and loop:
            parked = ParkedWorker()
            parked.waiting.extend(worker.park())
            loop.worker = parked
            try:
                self._learn(worker)
            finally:
                worker.queue.prefix_lookup.kept.close()
        self._forget()

    def end(self, failed: Failed) -> None:
        """End all requests and free the model, on the thread that owns MLX."""
        if self._loop:
            self._loop.end_all(failed)
            self.unload()

    def _forget(self) -> None:
        """Let go of the model; its description and tokenizer stay."""
        self._worker = None
        if self._loaded:
            self._loaded = replace(self._loaded, model=None)

    def _learn(self, worker: Worker) -> None:
        """Let drafters learn what they put off, and save what they have learned."""
        worker.proposers.work.finish()
        shared_table.save(worker.proposers.sources, self.settings)
        if self._loaded:
            kept_acceptance.save(worker.proposers.global_counts, self._acceptance_file(self._loaded))

    def _acceptance_file(self, loaded: LoadedModel) -> Path | None:
        return kept_acceptance.find_file(self.settings, loaded.info.name, loaded.tokenizer.fingerprint)

    def _run(self) -> None:
        try:
            try:
                self.load(self._on_progress)
            except ModelError as fault:
                self._start_error = fault
                self._started.set()
                return
            self._watchdog.start()
            self._started.set()
            self._serve_until_death()
        finally:
            self._watchdog.stop()
            self._worker = self._loop = None
            mx.clear_cache()
            # Streams left to the interpreter's exit can abort the process.
            mx.clear_streams()

    def _progress_made(self) -> tuple[int, int] | None:
        """Return numbers that grow with progress, None without work. Called on the watchdog's thread."""
        worker = self._worker
        if worker is None or self._lifecycle.num_live == 0:
            return None
        return worker.num_progressed, self._lifecycle.num_ended

    def _note_stall(self) -> None:
        self._stats.num_stalls += 1

    def _loading(self, source: str) -> Callable[[float], None]:
        return partial(self._progress, f"Loading {display_name(source)}")

    def _progress(self, stage: str, share: float) -> None:
        if self._abandoned:
            raise ModelError("loading was interrupted")
        if self._on_progress:
            self._on_progress(stage, share)

    def _serve_until_death(self) -> None:
        worker, loop = self._worker, self._loop
        assert worker and loop
        worker.stats.stations.start()
        try:
            loop.run()
            self._learn(worker)
        # Whatever was raised, every live request must get its terminal event.
        except BaseException as fault:
            self._die(fault)
        finally:
            worker.queue.prefix_lookup.kept.close()

    def _die(self, fault: BaseException) -> None:
        log.critical("the engine's thread died", exc_info=fault)
        text = f"{type(fault).__name__}: {fault}"
        self.abandon(text)
        if self.on_death:
            self.on_death(text)
