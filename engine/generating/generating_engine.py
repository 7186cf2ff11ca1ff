"""The engine of a model that generates text."""

import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from reprise.config.model_settings import display_name
from reprise.config.settings import Settings
from reprise.drafters.base import TableFileError
from reprise.engine.batch.batch import EngineStats
from reprise.engine.batch.sequence import Sequence
from reprise.engine.generating.setup import (
    TRIALS_AT_START_S,
    make_worker,
    may_put_trials_off,
    try_the_rest,
)
from reprise.engine.generating.worker import Worker
from reprise.engine.interface.errors import ModelError, SharedTableError
from reprise.engine.interface.events import Event, Failed, Sink
from reprise.engine.interface.models import ModelInfo, StartProgress
from reprise.engine.interface.request import GenerationRequest, Grammar
from reprise.engine.interface.spans import span
from reprise.engine.interface.status import EngineCounts, sum_counts
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.model.capabilities import PutOffError
from reprise.engine.model.loading import LoadedModel, make_draft_loader, make_loader
from reprise.engine.pool.model_engine import (
    STOPPING,
    Call,
    Cancel,
    Expect,
    Inbox,
    IsOver,
    Message,
    ModelEngine,
    Stop,
    Submit,
)
from reprise.engine.pool.residency import Makers
from reprise.engine.sampling.grammar import Grammars
from reprise.engine.speculative import acceptance, proposers
from reprise.engine.speculative.costs.kept_costs import write_ratios
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.heads.loading import find_given_head, find_head


class SuspendedWorker:
    """Takes the place of a model's worker while its weights are not in memory: its sequences wait.

    waiting: sequences in the order of submission.
    """

    has_work, is_blocked, num_progressed = False, False, 0
    running: SequenceOf[Sequence] = ()

    def __init__(self, waiting: SequenceOf[Sequence] = ()) -> None:
        self.waiting = list(waiting)

    @property
    def live(self) -> list[Sequence]:
        """Every sequence that has not had its terminal event."""
        return [s for s in self.waiting if not s.ended]

    def submit(self, sequence: Sequence) -> None:
        """Add a sequence to those that wait for the model."""
        self.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End the sequence of this request, and forget all sequences that have ended."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                sequence.fail(Failed("cancelled", "the client left"))
        self.waiting = self.live

    def end_waiting(self, failed: Failed) -> None:
        """End all waiting sequences with this failure."""
        for sequence in self.live:
            sequence.fail(failed)
        self.waiting = []

    def step(self) -> None:
        """Do nothing."""


log = logging.getLogger("reprise.engine")

PUT_OFF = (
    "%s: what it can do is not all tried after %g s; the rest is tried while nothing is asked. Until then "
    "answers come without drafts, each row has a forward pass of its own, and no prompt is kept"
)
"""Log line about trials put off, with the model's name and the seconds."""

KEEP_COSTS_EVERY_S = 60.0
"""Seconds between writes of learned step costs to their file."""


class GeneratingEngine(ModelEngine):
    """Queues requests for text, and has a worker while its model is loaded. makers: see Makers."""

    worker: Worker | SuspendedWorker

    def __init__(self, settings: Settings, makers: Makers, inbox: Inbox) -> None:
        super().__init__(settings, inbox)
        self.worker = SuspendedWorker()
        self._makers = makers
        self._ranks = makers.ranks
        self._load = makers.load or (self._ranks.load if self._ranks else make_loader(settings))
        self._load_draft = makers.load_draft or make_draft_loader(settings)
        self._loaded: LoadedModel | None = None
        self._grammars: Grammars
        self._stats = EngineStats()
        self._earlier = EngineCounts()
        self._remake: Callable[[], None] | None = None
        self._costs_kept_at = perf_counter()
        self.table = TableOfModel(self)

    @property
    def loaded(self) -> LoadedModel:
        """The model as loaded. Raises RuntimeError before that."""
        self._require_loaded()
        assert self._loaded
        return self._loaded

    @property
    def costs(self) -> StepCosts:
        """The costs of steps as learned so far. Raises RuntimeError while the model is not loaded."""
        if isinstance(self.worker, SuspendedWorker):
            raise RuntimeError("the engine has not been started")
        return self.worker.planner.costs

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a request. Its sink gets any number of deltas, then exactly one terminal event.

        Raises EngineError if the queue is full or the engine is draining or dead, and GrammarError if its
        grammar, compiled here if it has not been, cannot be used; the sink then gets nothing.
        """
        if request.grammar and request.grammar.compiled is None:
            # The engine's thread must never wait for a compilation.
            request = replace(request, grammar=self.compile_grammar(request.grammar))
        with self.lifecycle.accepting():
            self.inbox.put(Submit(request, self._counted(request.id, sink)))

    @property
    def has_prefix_cache(self) -> bool:
        """Whether prompts are kept, so that expect() has an effect."""
        return isinstance(self.worker, Worker) and self.worker.queue.prefixes.cache is not None

    def expect(self, requests: SequenceOf[GenerationRequest]) -> None:
        """Compute these prompts, the first one first, once nothing else is to be done. Nobody is told."""
        with self.lifecycle.held() as state:
            if state == "ready":
                self.inbox.put(Expect(requests))

    def compile_grammar(self, grammar: Grammar) -> Grammar:
        """Compile a grammar for later requests; return it as compiled. May take long.

        Raises GrammarError if it cannot be used, and ChildError if the machine is at fault.
        """
        return self._grammars.compile(grammar)

    def counts(self) -> EngineCounts:
        """Return the engine's counts, also of earlier times when the model was loaded."""
        counts = sum_counts([self._earlier, self._stats.counts()])
        return replace(counts, by_rank=self._ranks.count()) if self._ranks else counts

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the prefix caches' counts, by "target" and "draft" and the names of PrefixStatus."""
        if isinstance(worker := self.worker, SuspendedWorker):
            return {}
        drafting = worker.draft_prefiller
        found = {
            "target": worker.queue.prefixes.status(),
            "draft": drafting.prefixes.status() if drafting else None,
        }
        return {model: asdict(status) for model, status in found.items() if status}

    def between_steps(self, action: Callable[[], Any]) -> Any:
        """Call a function on the engine's thread between two steps, and return its result.

        Raises SharedTableError if the model takes no requests, and whatever the function raises.
        """
        call = Call(action, Future())
        with self.lifecycle.held() as state:
            if state != "ready":
                raise SharedTableError(f"the engine is {state}")
            self.inbox.put(call)
        return call.outcome.result()

    def load(self, on_progress: StartProgress) -> None:
        """See ModelEngine."""
        try:
            loaded, worker = self._make(on_progress)
            if self._ranks:
                self._ranks.begin_serving()
        except BaseException as fault:
            self._forget()
            if isinstance(fault, ModelError):
                raise
            raise ModelError(f"cannot load: {fault}") from fault
        for sequence in self.worker.live:
            worker.submit(sequence)
        self._earlier = sum_counts([self._earlier, self._stats.counts()])
        self.worker, self._stats = worker, worker.stats
        self._about = loaded.info, loaded.tokenizer
        self.lifecycle.begin_ready()

    def _make(self, on_progress: StartProgress) -> tuple[LoadedModel, Worker]:
        def loading(source: str) -> Callable[[float], None]:
            return partial(on_progress, f"Loading {display_name(source)}")

        settings = self.settings
        loaded = self._loaded = self._load(loading(settings.model_source))
        self._grammars = Grammars(loaded.tokenizer)
        of_draft = loading(settings.draft_model or "the draft model")
        given = draft = None
        if self._makers.load_draft is None:
            given = find_given_head(settings, of_draft)
        if self._load_draft and not given:
            draft = self._load_draft(of_draft)
        find = self._makers.find_head or partial(find_head, settings, given)
        makers = replace(self._makers, find_head=find)
        findings, info = loaded.findings, loaded.info
        findings.put_nothing_off()
        if may_put_trials_off(loaded, draft, settings, makers):
            findings.put_off_after(TRIALS_AT_START_S)
        try:
            worker = make_worker(loaded, draft, settings, makers, on_progress)
        except ModelError:
            if not findings.are_put_off:
                raise
            # An assumption in place of an unfinished trial may be the cause.
            findings.put_nothing_off()
            loaded.info = info
            worker = make_worker(loaded, draft, settings, makers, on_progress)
        if findings.are_put_off:
            log.info(PUT_OFF, info.name, TRIALS_AT_START_S)
            loaded.info = replace(loaded.info, is_tried=False)
            self._remake = partial(self._make_again, loaded, info, makers)
        self._restore(loaded, worker)
        return loaded, worker

    def _restore(self, loaded: LoadedModel, worker: Worker) -> None:
        """Restore what drafters learned in an earlier run."""
        proposers.restore(worker.proposers.sources, self.settings)
        proposers.restore_history(worker.proposers)
        acceptance.restore(worker.proposers.global_counts, self._acceptance_file(loaded))

    def _make_again(self, loaded: LoadedModel, info: ModelInfo, makers: Makers) -> None:
        """Remake the worker once all trials are done. Nothing may be running. info: as loaded."""
        old = self.worker
        assert isinstance(old, Worker)
        before, loaded.info = loaded.info, info
        old.proposers.work.finish()
        if old.proposers.can_draft:
            sources = old.proposers.sources
            makers = replace(makers, make_sources=lambda _: sources)
        try:
            worker = make_worker(loaded, None, self.settings, makers, lambda _stage, _share: None)
            if not old.proposers.can_draft:
                self._restore(loaded, worker)
        except ModelError as fault:
            loaded.info = replace(before, is_tried=True)
            log.warning("%s goes on as it is: %s", loaded.info.name, fault)
            return
        finally:
            loaded.findings.put_nothing_off()
        old.queue.prefixes.close()
        self._earlier = sum_counts([self._earlier, self._stats.counts()])
        self.worker, self._stats = worker, worker.stats
        self._about = loaded.info, loaded.tokenizer
        self.on_remade()
        log.info("%s: all that it can do is tried; drafts, rows together and kept prompts are on", info.name)

    def unload(self) -> None:
        """See ModelEngine."""
        if not isinstance(worker := self.worker, SuspendedWorker):
            self.worker = SuspendedWorker(worker.suspend())
            try:
                if not self.lifecycle.is_dead:
                    self._learn(worker)
            finally:
                worker.queue.prefixes.close()
        self._forget()

    @property
    def memory_budget(self) -> MemoryBudget | None:
        """The budget that estimates the memory of this model's requests; None while it is not loaded."""
        return None if isinstance(self.worker, SuspendedWorker) else self.worker.queue.memory_budget

    @property
    def _step(self) -> Callable[[], None]:
        return self.worker.step

    def _handle(self, message: Message) -> None:
        match message:
            case Submit(request, sink):
                self._queue(request, sink)
            case Cancel(request_id):
                self.worker.cancel(request_id)
            case Call():
                message.perform()
            case Expect(requests):
                self._expect(requests)
            case Stop():
                self.worker.end_waiting(STOPPING)

    def _queue(self, request: GenerationRequest, sink: Sink) -> None:
        try:
            worker = self.worker
            self._grammars.plain_s = 0.0 if isinstance(worker, SuspendedWorker) else worker.device.plain_s
            worker.submit(Sequence.of(request, sink, self.loaded.tokenizer, self._grammars))
        except Exception as fault:
            log.error("request %s cannot be queued", request.id, exc_info=True)
            sink(Failed("request", f"the request cannot be queued: {fault}"))

    def _expect(self, requests: SequenceOf[GenerationRequest]) -> None:
        if not isinstance(worker := self.worker, SuspendedWorker):
            make = partial(Sequence.of, tokenizer=self.loaded.tokenizer, grammars=self._grammars)
            worker.read_ahead.expect([make(request, lambda _: None) for request in requests])

    def read_next(self) -> bool:
        """See ModelEngine."""
        return isinstance(self.worker, Worker) and self.worker.read_next()

    def stop_reading(self) -> None:
        """See ModelEngine."""
        if isinstance(self.worker, Worker):
            self.worker.stop_reading()

    def pause(self) -> None:
        """Wait for all work in flight, before another model computes."""
        if not isinstance(self.worker, SuspendedWorker):
            try:
                self.worker.pause()
            except BaseException as fault:
                self.die(fault)

    def prepare(self, is_over: IsOver = lambda: False) -> bool:
        """Do a part of the work put off until idle; return whether more may be left."""
        if isinstance(self.worker, Worker) and perf_counter() - self._costs_kept_at >= KEEP_COSTS_EVERY_S:
            self._keep_costs(self.worker)
        with span("grammars"):
            if self._grammars.prepare():
                return True
        return self._try_rest(is_over)

    def _keep_costs(self, worker: Worker) -> None:
        self._costs_kept_at = perf_counter()
        if self._makers.costs is None:
            write_ratios(worker.planner.costs, self.loaded.info, self.settings)

    @span("trials")
    def _try_rest(self, is_over: IsOver) -> bool:
        """Run the trials that were put off, until is_over(); return whether more may be left."""
        if self._remake is None or self.worker.has_work:
            return False
        findings = self.loaded.findings
        findings.is_over, findings.may_put_off = is_over, False
        findings.on_try, findings.on_pass = (lambda _: None), (lambda _: None)
        try:
            try_the_rest(self.loaded, self.settings)
        except PutOffError:
            return True
        remake, self._remake = self._remake, None
        remake()
        return True

    def end_all(self, failed: Failed) -> None:
        """Send every live request its terminal event, including those still in the inbox."""
        for sequence in self.worker.live:
            sequence.fail(failed)
        self.inbox.refuse_all(failed)

    def _counted(self, request_id: str, sink: Sink) -> Sink:
        counted, explain = self.lifecycle.counting(request_id, sink), self._ranks and self._ranks.explain
        if not explain:
            return counted

        def explained(event: Event) -> None:
            if isinstance(event, Failed) and event.kind == "request" and (reason := explain()):
                event = replace(event, kind="engine", message=f"the engine has stopped: {reason}")
            counted(event)

        return explained

    def _forget(self) -> None:
        """Drop the model but keep its description and tokenizer."""
        self._remake = None
        if self._loaded:
            self._loaded = replace(self._loaded, model=None)

    def _learn(self, worker: Worker) -> None:
        """Keep what ended in the last step, let drafters finish learning, and save what they learned."""
        worker.retire()
        worker.proposers.work.finish()
        proposers.save(worker.proposers.sources, self.settings)
        acceptance.save(worker.proposers.global_counts, self._acceptance_file(self.loaded))
        self._keep_costs(worker)

    def _acceptance_file(self, loaded: LoadedModel) -> Path | None:
        return acceptance.find_file(self.settings, loaded.info.name, loaded.tokenizer.fingerprint)


class TableOfModel:
    """The n-gram table that the drafters of a model use. Any thread may call its methods."""

    def __init__(self, engine: GeneratingEngine) -> None:
        self._engine = engine

    def status(self) -> dict[str, Any]:
        """Return the counts of the n-gram table, by name. Raises SharedTableError."""
        return proposers.find_table(self._worker().proposers.sources).status()

    def reset(self) -> None:
        """Drop everything that drafters learned from finished requests. Raises SharedTableError."""
        self._between_steps(partial(proposers.reset, self._worker().proposers))

    def save(self) -> str:
        """Save the table to the settings' file; return a sentence that says so. Raises SharedTableError."""
        worker = self._worker()
        save = proposers.find_table(worker.proposers.sources).save

        def learn_and_save() -> str:
            worker.proposers.work.finish()
            return save()

        return str(self._between_steps(learn_and_save))

    def load(self) -> str:
        """Load the table from the settings' file; return a sentence that says so. Raises SharedTableError."""
        return str(self._between_steps(proposers.find_table(self._worker().proposers.sources).load))

    def _worker(self) -> Worker:
        if isinstance(worker := self._engine.worker, SuspendedWorker):
            raise SharedTableError("the engine is not running")
        return worker

    def _between_steps(self, action: Callable[[], Any]) -> Any:
        try:
            return self._engine.between_steps(action)
        except TableFileError as fault:
            raise SharedTableError(str(fault)) from fault
