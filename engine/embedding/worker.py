"""Make the vectors of all requests, a few layers of a pass at a time, on the thread that owns MLX.

A step takes as many layers of the pass as fit into the time that it has, but at least one. A pass has texts
of about the same length; they are padded at the end, and what is padding is masked.
"""

import logging
import time
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from engine.embedding.loading import EmbeddingModel
from engine.embedding.memory import PassMemory
from engine.embedding.passes import Job, Member, by_job, choose_members
from engine.interface.embeddings import EmbeddingRequest
from engine.interface.events import EmbeddingSink, Failed
from engine.memory.prefill_budget import PrefillLimits
from engine.scheduler.prefill_costs import PrefillCosts
from engine.stations import station

log = logging.getLogger("reprise.engine")


@dataclass
class _Pass:
    """Texts whose states are being computed. num_layers: that are done. width: tokens of the longest."""

    members: list[Member]
    hidden: mx.array
    mask: Any
    width: int
    num_layers: int = 0

    @property
    def num_tokens(self) -> int:
        """All tokens, padding included."""
        return len(self.members) * self.width


class EmbeddingWorker:
    """All requests of a model that embeds or ranks. Used by one thread only, but any may read the counts.

    max_stall_ms: that a step may take while rows of other models decode.
    max_tokens: of a pass, padding included, unless one text has more.
    jobs: in the order of their arrival.

    num_embedded, num_embedded_tokens: inputs of which the vector is made, and their tokens.
    num_progressed: grows with every part of a pass.
    """

    def __init__(self, max_stall_ms: float, max_tokens: int) -> None:
        self.model: EmbeddingModel | None = None
        self.memory: PassMemory | None = None
        self._max_stall_ms, self._max_tokens = max_stall_ms, max_tokens
        self.jobs: list[Job] = []
        self.num_embedded = self.num_embedded_tokens = 0
        self.num_progressed = self.num_passes = 0
        self.is_blocked = False
        self._pass: _Pass | None = None
        # Of one layer.
        self._costs = PrefillCosts()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.jobs) and self.model is not None

    @property
    def running(self) -> list[Job]:
        """The requests that have not ended."""
        return self.jobs

    @property
    def num_waiting(self) -> int:
        """Inputs without a vector."""
        return sum(len(job.left) for job in tuple(self.jobs)) + (len(self._pass.members) if self._pass else 0)

    def load(self, model: EmbeddingModel) -> None:
        """Go on with a model that is loaded now."""
        self.model, self._costs = model, PrefillCosts()
        self.memory = PassMemory(model.info.weight_bytes, model.config)

    def unload(self) -> None:
        """Let go of the model; requests wait."""
        self._put_back()
        self.model = self.memory = None

    def submit(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Queue a request."""
        self.jobs.append(Job.of(request, sink))

    def cancel(self, request_id: str) -> None:
        """End a request. What of it is in a pass is computed with the pass, unless nobody else is in it."""
        for job in self.jobs:
            if job.request.id == request_id:
                job.end(Failed("cancelled", "the client left"))
        self.drop_ended()

    def drop_ended(self) -> None:
        """Forget requests that ended, and the pass if it is theirs alone."""
        self.jobs = [job for job in self.jobs if not job.ended]
        if self._pass and all(member.job.ended for member in self._pass.members):
            self._leave()

    def end_all(self, failed: Failed) -> None:
        """End all requests."""
        for job in self.jobs:
            job.end(failed)
        self.drop_ended()

    @station("prefill")
    def step(self, num_decoding: int) -> None:
        """Compute a part of a pass. num_decoding: rows of other models that wait meanwhile."""
        limit_s = self._limit_s(num_decoding)
        assert self.model
        assert self.memory
        try:
            if self._pass is None:
                self._begin(self.model, self.memory)
            if self._pass is not None:
                self._advance(self.model, self._pass, limit_s)
                self.num_progressed += 1
        # Weights, tokens and memory may raise anything.
        except Exception as fault:
            self._fail(fault)

    def _limit_s(self, num_decoding: int) -> float:
        return PrefillLimits.of_step(num_decoding, self._max_stall_ms, self._max_tokens).seconds

    def _begin(self, model: EmbeddingModel, memory: PassMemory) -> None:
        """Choose the texts of a pass and embed their tokens, unless there is no memory now."""
        jobs = [job for job in self.jobs if job.left]
        members = choose_members(jobs, self.num_passes, self._fits)
        width = members[0].num_tokens
        while not memory.take(len(members), width):
            if len(members) == 1:
                self._wait_for_memory(members[0], memory.fault(width))
                return
            members = members[: len(members) // 2]
        self.is_blocked = False
        self.num_passes += 1
        for job, indices in by_job(members).items():
            job.take(indices)
        tokens, types = np.zeros((2, len(members), width), np.int32)
        for row, member in enumerate(members):
            tokens[row, : member.num_tokens] = member.input.tokens
            if (second := member.input.first_of_second) is not None:
                assert model.info.embedding
                types[row, second:] = model.info.embedding.second_type
        num_tokens = mx.array([member.num_tokens for member in members])
        # Known before anything is computed, so that a failure finds the suspects.
        self._pass = begun = _Pass(members, mx.array(0), "", width)
        begun.hidden, begun.mask = model.body.begin(mx.array(tokens), mx.array(types), num_tokens)

    def _fits(self, num_texts: int, width: int) -> bool:
        """Say whether a layer of a pass takes no longer than rows may wait, which may come before its end."""
        num_tokens = num_texts * width
        return num_tokens <= self._max_tokens and self._layer_s(num_tokens, width) <= self._limit_s(1)

    def _layer_s(self, num_tokens: int, width: int) -> float:
        """Return an upper estimate of a layer's seconds: that of a chunk whose tokens attend to a text."""
        return self._costs.seconds(num_tokens, width - num_tokens // 2)

    def _advance(self, model: EmbeddingModel, running: _Pass, limit_s: float) -> None:
        layers, num_tokens = model.body.layers, running.num_tokens
        num_fitting = int(limit_s / max(1e-9, self._layer_s(num_tokens, running.width)))
        until = min(len(layers), running.num_layers + max(1, num_fitting))
        num_layers = until - running.num_layers
        start, hidden = time.perf_counter(), running.hidden
        for layer in layers[running.num_layers : until]:
            hidden = layer(hidden, running.mask)
        if until == len(layers):
            hidden = model.body.end(hidden)
        mx.eval(hidden)
        taken_s = time.perf_counter() - start
        self._costs.observe(num_tokens, running.width - num_tokens // 2, taken_s / num_layers)
        running.hidden, running.num_layers = hidden, until
        if until == len(layers):
            self._finish(model, running)

    def _finish(self, model: EmbeddingModel, done: _Pass) -> None:
        """Make the vectors of a pass, and end the requests that are complete."""
        made = [
            model.finish(
                done.hidden[row, : member.num_tokens],
                member.input.first_pooled,
                member.job.request.dimensions,
            )
            for row, member in enumerate(done.members)
        ]
        mx.eval(made)
        for member, vector in zip(done.members, made, strict=True):
            member.job.vectors[member.index] = np.array(vector).astype("<f4").tobytes()
            self.num_embedded += 1
            self.num_embedded_tokens += member.num_tokens
        self._leave()
        for job in dict.fromkeys(member.job for member in done.members):
            if len(job.vectors) == len(job.request.inputs):
                job.finish()
        self.drop_ended()

    def _wait_for_memory(self, member: Member, fault: str | None) -> None:
        self.is_blocked = fault is None
        if fault:
            member.job.end(Failed("request", fault))
            self.drop_ended()

    def _fail(self, fault: Exception) -> None:
        """End the request whose pass failed; of several, each is tried again by itself."""
        suspects = [member.job for member in self._pass.members] if self._pass else self.jobs[:1]
        suspects = list(dict.fromkeys(suspects))
        self._put_back()
        for job in suspects:
            if len(suspects) == 1:
                log.error("request %s failed", job.request.id, exc_info=fault)
                job.end(Failed("request", f"{type(fault).__name__}: {fault}"))
            job.is_alone = True
        self.drop_ended()

    def _put_back(self) -> None:
        """Let go of the pass; its texts are computed later."""
        for job, indices in by_job(self._pass.members if self._pass else ()).items():
            job.put_back(indices)
        self._leave()

    def _leave(self) -> None:
        """Let go of the pass."""
        self._pass = None
        if self.memory:
            self.memory.release()
