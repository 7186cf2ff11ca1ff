"""The engine of a model that embeds or ranks."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import mlx.core as mx

from reprise.config.model_settings import display_name
from reprise.config.settings import Settings
from reprise.engine.embedding.loading import load_embedding_model
from reprise.engine.embedding.passes import PassMemory
from reprise.engine.embedding.worker import EmbeddingWorker
from reprise.engine.interface.embeddings import EmbeddingRequest
from reprise.engine.interface.events import EmbeddingSink, Failed
from reprise.engine.interface.status import EngineCounts
from reprise.engine.model.loading import StartProgress
from reprise.engine.pool.model_engine import Cancel, Embed, Inbox, Message, ModelEngine


class EmbeddingEngine(ModelEngine):
    """Hands requests for vectors or scores to its worker, which computes a part of a pass in each step.

    name: by which the model is known.
    count_decoding: returns how many other models have rows that wait while this one computes.
    """

    worker: EmbeddingWorker
    passes_on = True

    def __init__(
        self, settings: Settings, name: str, inbox: Inbox, count_decoding: Callable[[], int]
    ) -> None:
        super().__init__(settings, inbox)
        self.worker = EmbeddingWorker(
            settings.max_stall_ms, settings.prefill_chunk_tokens, settings.prefix_cache_bytes
        )
        self._name, self._count_decoding = name, count_decoding

    def embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Queue a request. Its sink gets one event. Raises EngineError if it is refused."""
        with self.lifecycle.accepting():
            self.inbox.put(Embed(request, self.lifecycle.counting(request.id, sink)))

    def counts(self) -> EngineCounts:
        """Return the counts of inputs that were embedded, and of those that wait."""
        worker = self.worker
        return EngineCounts(
            num_embedded=worker.num_embedded,
            num_embedded_tokens=worker.num_embedded_tokens,
            num_to_embed=worker.num_waiting,
        )

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the counts of the kept heads of texts; empty for models that attend in both directions."""
        prefixes = self.worker.prefixes
        return {"target": asdict(prefixes.kept.status())} if prefixes else {}

    def load(self, on_progress: StartProgress) -> None:
        """See ModelEngine."""
        stage = f"Loading {display_name(self.settings.model_source)}"
        model = load_embedding_model(self.settings, self._name, partial(on_progress, stage))
        self._about = model.info, model.tokenizer
        self.worker.load(model)
        self.lifecycle.begin_ready()

    def unload(self) -> None:
        """See ModelEngine."""
        self.worker.unload()
        mx.clear_cache()

    @property
    def memory_budget(self) -> PassMemory | None:
        """The model's part of the memory of all models; None while the model is not loaded."""
        return self.worker.memory

    @property
    def _step(self) -> Callable[[], None]:
        return lambda: self.worker.step(self._count_decoding())

    def pause(self) -> None:
        """Do nothing: nothing is in flight between two steps."""

    def _handle(self, message: Message) -> None:
        match message:
            case Embed(request, sink):
                self.worker.submit(request, sink)
            case Cancel(request_id):
                self.worker.cancel(request_id)

    def end_all(self, failed: Failed) -> None:
        """Send every live request its terminal event, including those still in the inbox."""
        self.worker.end_all(failed)
        self.inbox.refuse_all(failed)
