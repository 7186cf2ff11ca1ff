"""The engine of a model that embeds or ranks, as the pool and the server see it: one of several models.

The pool's thread calls load(), turn(), pause(), prepare(), unload(), end() and abandon(), any thread the
others.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import mlx.core as mx

from config.model_settings import display_name
from config.settings import Settings
from engine.embedding.loading import load_embedding_model
from engine.embedding.memory import PassMemory
from engine.embedding.worker import EmbeddingWorker
from engine.interface.embeddings import EmbeddingRequest
from engine.interface.events import EmbeddingSink, Failed
from engine.interface.models import ModelInfo
from engine.interface.status import EngineCounts, EngineStatus
from engine.lifecycle import Lifecycle
from engine.loop import Cancel, Embed, Inbox, Stop
from engine.model.loading import StartProgress
from engine.text.tokenizer import Tokenizer


class EmbeddingEngine:
    """Hands a model's requests to its worker, and their results to the sinks.

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
        self._worker = EmbeddingWorker(
            settings.max_stall_ms, settings.prefill_chunk_tokens, settings.prefix_cache_bytes
        )

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
        """The model's part of the memory of all models; None while the model is not loaded."""
        return self._worker.memory

    def embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Queue a request. Its sink gets one event. Raises EngineError if it is refused."""
        with self._lifecycle.accepting():
            self._inbox.put(Embed(request, self._lifecycle.counting(request.id, sink)))

    def cancel(self, request_id: str) -> None:
        """End a request early; its sink gets Failed("cancelled"), unless it has ended or is unknown."""
        self._inbox.put(Cancel(request_id))

    def status(self) -> EngineStatus:
        """Return the present state."""
        return self._lifecycle.status(len(self._worker.jobs))

    def counts(self) -> EngineCounts:
        """Return the counts of inputs that were embedded, and that wait."""
        worker = self._worker
        return EngineCounts(
            num_embedded=worker.num_embedded,
            num_embedded_tokens=worker.num_embedded_tokens,
            num_to_embed=worker.num_waiting,
        )

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the counts of kept beginnings of texts; empty for models that attend in both directions."""
        prefixes = self._worker.prefixes
        return {"target": asdict(prefixes.kept.status())} if prefixes else {}

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
        self._about = model.info, model.tokenizer
        self._worker.load(model)
        self._lifecycle.begin_ready()

    def unload(self) -> None:
        """Free the model. Requests that wait go on after the next load()."""
        self._worker.unload()
        mx.clear_cache()

    def end(self, failed: Failed) -> None:
        """End all requests and free the model."""
        self._end_all(failed)
        self.unload()

    def abandon(self, fault: str) -> None:
        """End all requests as failed, because the thread that owns MLX has died of a fault."""
        self._lifecycle.die(fault)
        self._end_all(Failed("engine", f"the engine has stopped: {fault}"))

    @property
    def has_work(self) -> bool:
        """Whether turn() would do anything."""
        return self._worker.has_work or not self._inbox.empty()

    @property
    def is_done(self) -> bool:
        """Whether it has stopped, or died."""
        is_over = not self.has_work or self._lifecycle.is_out_of_time
        return self.is_dead or (self._lifecycle.state == "draining" and is_over)

    @property
    def is_dead(self) -> bool:
        """Whether it has died of a fault."""
        return self._lifecycle.is_dead

    @property
    def is_running(self) -> bool:
        """Whether requests are being computed."""
        return self._worker.has_work and not self._worker.is_blocked

    @property
    def is_blocked(self) -> bool:
        """Whether requests wait for memory that other models hold."""
        return self._worker.has_work and self._worker.is_blocked

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
        return self._worker.num_steps

    def turn(self) -> None:
        """Take the messages that have come, and compute a part of a pass."""
        self._take_messages()
        if self._worker.has_work:
            self._worker.step(self._count_decoding())

    def pause(self) -> None:
        """Do nothing: nothing is in flight between two turns."""

    def prepare(self) -> bool:
        """Return False: there is no work to do in advance."""
        return False

    def _take_messages(self) -> None:
        while not self._inbox.empty():
            match self._inbox.get():
                case Embed(request, sink):
                    self._worker.submit(request, sink)
                case Cancel(request_id):
                    self._worker.cancel(request_id)

    def _end_all(self, failed: Failed) -> None:
        self._take_messages()
        self._worker.end_all(failed)

    def _require_loaded(self) -> tuple[ModelInfo, Tokenizer]:
        if self._about is None:
            raise RuntimeError("the engine has not been started")
        return self._about
