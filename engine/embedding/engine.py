"""The engine of a model that embeds or ranks, as the pool and the server see it: one of several models.

The pool's thread calls load(), turn(), pause(), prepare(), unload(), end() and abandon(), any thread the
others.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx

from config.settings import Settings, display_name
from engine.embedding.loading import load_embedding_model
from engine.embedding.memory import PassMemory
from engine.embedding.passes import Job, cancel
from engine.embedding.worker import EmbeddingWorker
from engine.lifecycle import Lifecycle
from engine.loop import Cancel, Embed, Inbox, Stop
from engine.model.loading import StartProgress
from engine.request import (
    Embedded,
    EmbeddingRequest,
    EmbeddingSink,
    EngineCounts,
    EngineStatus,
    Failed,
    GenerationRequest,
    Grammar,
    GrammarError,
    ModelInfo,
    SharedTableError,
    Sink,
)
from engine.text.tokenizer import Tokenizer

log = logging.getLogger("reprise.engine")


class EmbeddingEngine:
    """Hands a model's requests to its worker, and reports what became of them.

    name: by which the model is known. inbox: takes other threads' messages.
    count_decoding: returns how many rows of other models wait while this one computes.
    attached, on_death: see Engine.
    """

    def __init__(
        self, settings: Settings, name: str, inbox: Inbox, count_decoding: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.attached: dict[str, Any] = {}
        self.on_death: Callable[[str], None] | None = None
        self._name, self._inbox, self._count_decoding = name, inbox, count_decoding
        self._lifecycle = Lifecycle(settings.max_rows + settings.max_queue)
        self._about: tuple[ModelInfo, Tokenizer] | None = None
        self._worker: EmbeddingWorker | None = None
        self._parked: list[Job] = []
        self._counted = EngineCounts()

    @property
    def info(self) -> ModelInfo:
        """The model, once it was loaded."""
        return self._require_loaded()[0]

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, once it was loaded."""
        return self._require_loaded()[1]

    @property
    def memory_budget(self) -> PassMemory | None:
        """What it holds of the memory of all models; None while it is not loaded."""
        return self._worker.memory if self._worker else None

    def start(self, on_progress: StartProgress | None = None) -> None:
        """Do nothing: the pool's thread loads it."""

    def submit(self, request: GenerationRequest, sink: Sink) -> None:  # noqa: ARG002 - of an engine
        """Refuse to generate."""
        sink(Failed("request", f"{self._name} generates no text"))

    def embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Queue a request. Its sink gets one event. Raises EngineError if it is refused."""
        with self._lifecycle.accepting():
            self._inbox.put(Embed(request, self._counting(request.id, sink)))

    def cancel(self, request_id: str) -> None:
        """End a request early; its sink gets Failed("cancelled"), unless it has ended or is unknown."""
        self._inbox.put(Cancel(request_id))

    def compile_grammar(self, grammar: Grammar) -> Grammar:  # noqa: ARG002 - of an engine
        """Refuse. Raises GrammarError."""
        raise GrammarError(f"{self._name} generates no text")

    def status(self) -> EngineStatus:
        """Return the present state."""
        return self._lifecycle.status(len(self._worker.jobs) if self._worker else 0)

    def counts(self) -> EngineCounts:
        """Return what was embedded, also before the model was last unloaded, and what is to be."""
        worker, before = self._worker, self._counted
        if worker is None:
            return before
        return replace(
            before,
            num_embedded=before.num_embedded + worker.num_embedded,
            num_embedded_tokens=before.num_embedded_tokens + worker.num_embedded_tokens,
            num_to_embed=worker.num_waiting,
        )

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return nothing: what attends in both directions has no prefixes."""
        return {}

    def table_status(self) -> dict[str, Any]:
        """Refuse, as nothing is drafted. Raises SharedTableError."""
        raise SharedTableError(f"{self._name} generates no text")

    def table_reset(self) -> None:
        """Refuse. See table_status()."""
        self.table_status()

    def table_save(self) -> str:
        """Refuse. See table_status()."""
        return str(self.table_status())

    def table_load(self) -> str:
        """Refuse. See table_status()."""
        return str(self.table_status())

    def stop(self, drain_s: float) -> None:
        """Begin to stop; the pool's thread ends it."""
        self.begin_stop(drain_s)

    def begin_stop(self, drain_s: float) -> None:
        """Refuse new requests, and give running ones drain_s seconds to finish."""
        self._lifecycle.begin_draining(drain_s)
        self._inbox.put(Stop())

    def load(self, on_progress: StartProgress | None = None) -> None:
        """Load the model. Requests that came before an unload() go on. Raises ModelError."""
        stage = f"Loading {display_name(self.settings.model_source)}"

        def progress(share: float) -> None:
            if on_progress:
                on_progress(stage, share)

        model = load_embedding_model(self.settings, self._name, progress)
        worker = EmbeddingWorker(model, self.settings.max_stall_ms, self.settings.prefill_chunk_tokens)
        worker.jobs, self._parked = self._parked, []
        self._about, self._worker = (model.info, model.tokenizer), worker
        self._lifecycle.begin_ready()

    def unload(self) -> None:
        """Free the model. Requests that wait go on after the next load()."""
        self._counted = replace(self.counts(), num_to_embed=0)
        if self._worker:
            self._parked = self._worker.park()
        self._forget()

    def end(self, failed: Failed) -> None:
        """End all requests and free the model."""
        self._end_all(failed)
        self._forget()

    def abandon(self, fault: str) -> None:
        """End all requests as failed, because the thread that owns MLX has died of a fault."""
        self._lifecycle.die(fault)
        self._end_all(Failed("engine", f"the engine has stopped: {fault}"))

    @property
    def has_work(self) -> bool:
        """Whether turn() would do anything."""
        return not self._inbox.empty() or (self._worker is not None and self._worker.has_work)

    @property
    def is_done(self) -> bool:
        """Whether it has stopped, or died."""
        is_over = not self.has_work or self._lifecycle.is_out_of_time
        return self.is_dead or (self._lifecycle.state == "draining" and is_over)

    @property
    def is_dead(self) -> bool:
        """Whether it has died of a fault."""
        return self._lifecycle.state == "dead"

    @property
    def is_running(self) -> bool:
        """Whether requests are being computed."""
        return self._worker is not None and self._worker.has_work and not self._worker.is_blocked

    @property
    def is_blocked(self) -> bool:
        """Whether requests wait for memory that other models hold."""
        return self._worker is not None and self._worker.has_work and self._worker.is_blocked

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
        """A number that grows with every part of a pass."""
        return self._worker.num_steps if self._worker else 0

    def turn(self) -> None:
        """Take the messages that have come, and compute a part of a pass."""
        self._take_messages()
        if self._worker and self._worker.has_work:
            self._worker.step(self._count_decoding())

    def pause(self) -> None:
        """Do nothing: nothing is in flight between two turns."""

    def prepare(self) -> bool:
        """Return that there is nothing to do in advance."""
        return False

    def _take_messages(self) -> None:
        while not self._inbox.empty():
            match self._inbox.get():
                case Embed(request, sink):
                    if self._worker:
                        self._worker.submit(request, sink)
                    else:
                        self._parked.append(Job.of(request, sink))
                case Cancel(request_id):
                    if self._worker:
                        self._worker.cancel(request_id)
                    cancel(self._parked, request_id)
                case _:
                    pass

    def _end_all(self, failed: Failed) -> None:
        self._take_messages()
        for job in (*self._parked, *(self._worker.jobs if self._worker else ())):
            job.end(failed)
        self._parked = []
        if self._worker:
            self._worker.drop_ended()

    def _forget(self) -> None:
        """Let go of the weights; the description and the tokenizer stay."""
        self._worker = None
        mx.clear_cache()

    def _require_loaded(self) -> tuple[ModelInfo, Tokenizer]:
        if self._about is None:
            raise RuntimeError("the engine has not been started")
        return self._about

    def _counting(self, request_id: str, sink: EmbeddingSink) -> EmbeddingSink:
        def counted(event: Embedded | Failed) -> None:
            self._lifecycle.note_end(event)
            try:
                sink(event)
            # A sink must not raise; if it does, only its own request is affected.
            except Exception:
                log.error("the sink of request %s raised", request_id, exc_info=True)

        return counted
