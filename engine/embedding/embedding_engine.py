"""The engine of a model that embeds or ranks, and its worker, which computes passes layer by layer."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.config.model_settings import display_name
from reprise.config.settings import Settings
from reprise.engine.embedding.encoder import CutLayer
from reprise.engine.embedding.loading import EmbeddingModel, load_embedding_model
from reprise.engine.embedding.passes import (
    PREFIX_BYTES,
    Before,
    Job,
    Member,
    PassMemory,
    Prefixes,
    by_job,
    choose_members,
)
from reprise.engine.interface.embeddings import EmbeddingInput, EmbeddingRequest, TokenIds
from reprise.engine.interface.events import EmbeddingSink, Failed
from reprise.engine.interface.models import StartProgress
from reprise.engine.interface.spans import span
from reprise.engine.interface.status import EngineCounts
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.memory.prefill_plan import MAX_STALL_MS, PrefillCosts, PrefillLimits, count_fitting
from reprise.engine.pool.model_engine import Cancel, Embed, Inbox, Message, ModelEngine

log = logging.getLogger("reprise.engine")

MIN_TOKENS = 64
"""Tokens of a layer that a step computes where even these may take longer than it has."""

OVERFLOWED = (
    "a text's result is not a finite number: the model overflows in the type of its weights, as many do in "
    "float16; serve a copy of the model in bfloat16 or float32"
)
"""Failure of a request with a vector or score that JSON could not hold."""


@dataclass
class _Pass:
    """A forward pass over texts; first over the prefix that they share, unless that is cached.

    head: the shared prefix. caches: the prefix's, while it is being computed.
    hidden, mask: the next layer's input. num_layers: layers done. cut: the next layer, if it is partly done.
    before: each layer's keys and values of the prefix; empty without a prefix.
    num_rows, width, num_before: texts fed, tokens of the longest, and tokens of the prefix.
    """

    model: EmbeddingModel
    members: list[Member]
    head: TokenIds
    caches: Caches | None = None
    hidden: mx.array = field(default_factory=lambda: mx.array(0))
    mask: Any = None
    num_layers: int = 0
    cut: CutLayer | None = None
    before: Sequence[Any] = ()
    num_rows: int = 0
    width: int = 0
    num_before: int = 0


class EmbeddingWorker:
    """All requests of a model that embeds or ranks. Used by one thread; any thread may read the counts.

    A step computes as many layers of a pass as its time allows. If a whole layer does not fit, it computes
    as many of its tokens as do, but at least MIN_TOKENS. The texts of a pass have similar lengths. They are
    padded at the end, and padding is masked.

    max_stall_ms: how long a step may take while rows of other models decode.
    max_tokens: the most tokens of a pass, padding included, unless a single text has more.
    running: the requests that have not ended, in the order of their arrival.
    prefix_bytes: limit of the cached prefixes; None for PREFIX_BYTES.
    prefixes: the cached prefixes; None if the model caches none.
    num_embedded, num_embedded_tokens: inputs that have their vector or score, and their tokens.
    num_computed: tokens that were fed, without padding. num_progressed: grows with every part of a pass.
    """

    def __init__(self, max_stall_ms: float, max_tokens: int, prefix_bytes: int | None = None) -> None:
        self.model: EmbeddingModel | None = None
        self.memory: PassMemory | None = None
        self.prefixes: Prefixes | None = None
        self._prefix_bytes = PREFIX_BYTES if prefix_bytes is None else prefix_bytes
        self._max_stall_ms, self._max_tokens = max_stall_ms, max_tokens
        self.running: list[Job] = []
        self.num_embedded = self.num_embedded_tokens = self.num_computed = 0
        self.num_progressed = self.num_passes = 0
        self.is_blocked = False
        self._pass: _Pass | None = None
        # Of one layer.
        self._costs = PrefillCosts()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running) and self.model is not None

    @property
    def num_waiting(self) -> int:
        """The number of inputs that still wait for their vector or score."""
        in_pass = len(self._pass.members) if self._pass else 0
        return in_pass + sum(len(job.left) for job in tuple(self.running))

    def load(self, model: EmbeddingModel) -> None:
        """Take over a model that has just been loaded, and go on with the waiting requests."""
        self.model, self._costs = model, PrefillCosts()
        self.prefixes = _make_prefixes(model, self._prefix_bytes)
        kept = self.prefixes.kept if self.prefixes else None
        self.memory = PassMemory(model.info.weight_bytes, model.config, kept)
        for job in self.running:
            self._find_head(job)

    def unload(self) -> None:
        """Drop the model and the running pass; requests wait for the next load."""
        self._put_back()
        self.model = self.memory = self.prefixes = None

    def submit(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Queue a request."""
        self.running.append(Job(request, sink))
        self._find_head(self.running[-1])

    def _find_head(self, job: Job) -> None:
        job.head = self.prefixes.find_head(job.request) if self.prefixes else ()

    def cancel(self, request_id: str) -> None:
        """End a request. A running pass goes on with the request's inputs, unless it has no others."""
        for job in self.running:
            if job.request.id == request_id:
                job.end(Failed("cancelled", "the client left"))
        self.drop_ended()

    def drop_ended(self) -> None:
        """Forget requests that have ended, and the running pass if it has inputs of no other request."""
        self.running = [job for job in self.running if not job.ended]
        if self._pass and all(member.job.ended for member in self._pass.members):
            self._leave()

    def end_all(self, failed: Failed) -> None:
        """End all requests with this failure."""
        for job in self.running:
            job.end(failed)
        self.drop_ended()

    @span("prefill")
    def step(self, num_decoding: int) -> None:
        """Compute some layers of a pass. num_decoding: other models whose rows wait meanwhile."""
        limit_s = self._limit_s(num_decoding)
        assert self.model
        assert self.memory
        try:
            if self._pass is None:
                self._begin(self.model, self.memory)
            if self._pass is not None:
                self._advance(self._pass, limit_s)
                self.num_progressed += 1
        # Weights, tokens and memory may raise anything.
        except Exception as fault:
            self._fail(fault)

    def _limit_s(self, num_decoding: int) -> float:
        return PrefillLimits.of_step(num_decoding, self._max_stall_ms, self._max_tokens).seconds

    def _begin(self, model: EmbeddingModel, memory: PassMemory) -> None:
        """Choose the texts of a pass and embed their tokens, unless there is no memory now."""
        jobs = [job for job in self.running if job.left]
        members = choose_members(jobs, self.num_passes, self._fits)
        head = members[0].job.head
        while not memory.take(len(members), members[0].num_tokens - len(head), len(head)):
            if len(members) > 1:
                members = members[: len(members) // 2]
            elif head:
                # The whole text alone takes less.
                members[0].job.head = head = ()
            else:
                fault = memory.fault(members[0].num_tokens)
                self.is_blocked = fault is None
                if fault:
                    members[0].job.end(Failed("request", fault))
                    self.drop_ended()
                return
        self.is_blocked = False
        self.num_passes += 1
        for job, indices in by_job(members).items():
            job.take(indices)
        # Set before anything is computed, so that a failure finds the suspects.
        self._pass = begun = _Pass(model, members, head)
        if not self.prefixes or not head:
            self._feed_texts(begun)
            return
        caches, num_held = self.prefixes.find(head)
        if num_held == len(head):
            self._feed_texts(begun, caches)
        else:
            begun.caches = begun.before = caches
            self._feed(begun, [EmbeddingInput(head[num_held:])], num_held)

    def _feed_texts(self, begun: _Pass, caches: Sequence[Any] = ()) -> None:
        """Embed the texts' tokens after their shared prefix. caches: the prefix's, computed."""
        num_head = len(begun.head)
        begun.caches, begun.before = None, [Before(cache) for cache in caches]
        self._feed(begun, [member.input.after(num_head) for member in begun.members], num_head)

    def _feed(self, begun: _Pass, inputs: Sequence[EmbeddingInput], num_before: int) -> None:
        """Embed tokens of the rows of a pass. inputs: the first one has most tokens."""
        width = len(inputs[0].tokens)
        tokens, types = np.zeros((2, len(inputs), width), np.int32)
        for row, one in enumerate(inputs):
            tokens[row, : len(one.tokens)] = one.tokens
            if (second := one.first_of_second) is not None:
                assert begun.model.info.embedding
                types[row, second:] = begun.model.info.embedding.second_type
        lengths = mx.array([len(one.tokens) for one in inputs])
        begun.num_rows, begun.width, begun.num_before, begun.num_layers = len(inputs), width, num_before, 0
        begun.hidden, begun.mask = begun.model.body.begin(mx.array(tokens), mx.array(types), lengths)
        self.num_computed += sum(len(one.tokens) for one in inputs)

    def _fits(self, num_texts: int, width: int) -> bool:
        """Return whether a layer fits into the time that rows of other models may wait."""
        num_tokens = num_texts * width
        return num_tokens <= self._max_tokens and self._layer_s(num_tokens, width) <= self._limit_s(1)

    def _layer_s(self, num_tokens: int, seen: int) -> float:
        """Return an upper estimate of a layer's seconds, as for a chunk whose tokens attend to a text.

        seen: tokens of that text, prefix included.
        """
        return self._costs.seconds(num_tokens, seen - num_tokens // 2)

    def _advance(self, running: _Pass, limit_s: float) -> None:
        seen = running.num_before + running.width
        least = -(-MIN_TOKENS // running.num_rows)
        fitting = count_fitting(lambda n: self._layer_s(n * running.num_rows, seen), running.width, limit_s)
        if running.cut or max(least, fitting) < running.width:
            self._advance_in_layer(running, max(least, fitting), seen)
        else:
            self._advance_layers(running, limit_s, seen)
        if running.num_layers < len(running.model.body.layers):
            return
        if running.caches is None:
            self._finish(running, running.model.body.end(running.hidden))
        else:
            assert self.prefixes
            self.prefixes.keep(running.head, running.caches)
            self._feed_texts(running, running.caches)

    def _advance_in_layer(self, running: _Pass, most: int, seen: int) -> None:
        """Compute a layer for up to `most` tokens of each text. seen: tokens that each attends to."""
        start, index = time.perf_counter(), running.num_layers
        if running.cut is None:
            before, grows = running.before[index] if running.before else None, running.caches is not None
            layer = running.model.body.layers[index]
            running.cut = CutLayer(layer, running.hidden, running.mask, before, grows=grows)
        arrays, num_tokens = running.cut.advance(most)
        mx.eval(arrays)
        if num_tokens:
            fed = num_tokens * running.num_rows
            self._costs.observe(fed, seen - fed // 2, time.perf_counter() - start)
        if (states := running.cut.states) is not None:
            running.hidden, running.num_layers, running.cut = states, index + 1, None

    def _advance_layers(self, running: _Pass, limit_s: float, seen: int) -> None:
        """Compute as many whole layers as fit into the time, at least one."""
        layers, num_tokens = running.model.body.layers, running.num_rows * running.width
        num_fitting = int(limit_s / max(1e-9, self._layer_s(num_tokens, seen)))
        until = min(len(layers), running.num_layers + max(1, num_fitting))
        num_layers = until - running.num_layers
        start, hidden = time.perf_counter(), running.hidden
        for index in range(running.num_layers, until):
            hidden = layers[index](hidden, running.mask, *running.before[index : index + 1])
        mx.eval(hidden)
        taken_s = time.perf_counter() - start
        self._costs.observe(num_tokens, seen - num_tokens // 2, taken_s / num_layers)
        running.hidden, running.num_layers = hidden, until

    def _finish(self, done: _Pass, hidden: mx.array) -> None:
        """Make the vectors of a pass, and end the requests that are complete. hidden: of the last layer."""
        num_head = len(done.head)
        made = [
            done.model.finish(
                hidden[row, : member.num_tokens - num_head],
                max(0, member.input.first_pooled - num_head),
                member.job.request.dimensions,
            )
            for row, member in enumerate(done.members)
        ]
        mx.eval(made)
        for member, vector in zip(done.members, made, strict=True):
            numbers = np.array(vector).astype("<f4")
            if not np.isfinite(numbers).all():
                member.job.end(Failed("request", OVERFLOWED))
                continue
            member.job.vectors[member.index] = numbers.tobytes()
            self.num_embedded += 1
            self.num_embedded_tokens += member.num_tokens
        self._leave()
        for job in by_job(done.members):
            if len(job.vectors) == len(job.request.inputs):
                job.finish()
        self.drop_ended()

    def _fail(self, fault: Exception) -> None:
        """End the request whose pass failed; if several share it, try each again by itself."""
        suspects = list(by_job(self._pass.members)) if self._pass else self.running[:1]
        self._put_back()
        for job in suspects:
            if len(suspects) == 1:
                log.error("request %s failed", job.request.id, exc_info=fault)
                job.end(Failed("request", f"{type(fault).__name__}: {fault}"))
            job.is_alone = True
        self.drop_ended()

    def _put_back(self) -> None:
        """Drop the pass; its texts are computed later."""
        for job, indices in by_job(self._pass.members if self._pass else ()).items():
            job.put_back(indices)
        self._leave()

    def _leave(self) -> None:
        """Drop the pass."""
        self._pass = None
        if self.memory:
            self.memory.release()


def _make_prefixes(model: EmbeddingModel, num_bytes: int) -> Prefixes | None:
    """Return the cache of shared prefixes; None if the model attends in both directions."""
    make, embedding = getattr(model.body, "make_caches", None), model.info.embedding
    if not num_bytes or embedding is None or make is None:
        return None
    return Prefixes(make, num_bytes, pools_last=embedding.recipe.pooling == "last")


class EmbeddingEngine(ModelEngine):
    """Passes requests for vectors or scores to its worker, which computes a part of a pass per step.

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
            MAX_STALL_MS, settings.prefill_chunk_tokens, settings.prefix_cache_bytes
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
        """Return the counts of the cached prefixes; empty for models that attend in both directions."""
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
