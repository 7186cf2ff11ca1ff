"""Make the vectors of all requests, a few layers of a pass at a time, on the thread that owns MLX.

A step takes as many layers of the pass as fit into the time that it has, but at least one. A pass has texts
of about the same length; they are padded at the end, and what is padding is masked.
"""

import logging
import time
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from engine.embedding.loading import EmbeddingModel
from engine.embedding.memory import PassMemory
from engine.embedding.passes import Job, Member, cancel, choose_members
from engine.request import EmbeddingRequest, EmbeddingSink, Failed
from engine.scheduler.prefill_budget import PrefillLimits
from engine.scheduler.prefill_costs import PrefillCosts
from engine.stations import station

log = logging.getLogger("reprise.engine")


@dataclass
class _Pass:
    """Texts whose states are being computed. num_layers: that are done. width: tokens of the longest."""

    members: list[Member]
    hidden: mx.array
    mask: mx.array
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
    num_steps: grows with every part of a pass.
    """

    def __init__(self, model: EmbeddingModel, max_stall_ms: float, max_tokens: int) -> None:
        self._model = model
        self._max_stall_ms, self._max_tokens = max_stall_ms, max_tokens
        self.memory = PassMemory(model.info.weight_bytes, model.sizes)
        self.jobs: list[Job] = []
        self.num_embedded = self.num_embedded_tokens = 0
        self.num_steps = self.num_passes = 0
        self.is_blocked = False
        self._pass: _Pass | None = None
        # Of one layer.
        self._costs = PrefillCosts()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.jobs)

    @property
    def num_waiting(self) -> int:
        """Inputs without a vector."""
        return sum(len(job.left) for job in tuple(self.jobs)) + (len(self._pass.members) if self._pass else 0)

    def submit(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Queue a request."""
        self.jobs.append(Job.of(request, sink))

    def cancel(self, request_id: str) -> None:
        """End a request. What of it is in a pass is computed with the pass, unless nobody else is in it."""
        cancel(self.jobs, request_id)
        self.drop_ended()

    def drop_ended(self) -> None:
        """Forget requests that ended, and the pass if it is theirs alone."""
        self.jobs = [job for job in self.jobs if not job.ended]
        if self._pass and all(member.job.ended for member in self._pass.members):
            self._leave()

    def park(self) -> list[Job]:
        """Return all requests with what is made of them, for a worker that replaces this one."""
        self._put_back()
        return self.jobs

    @station("prefill")
    def step(self, num_decoding: int) -> None:
        """Compute a part of a pass. num_decoding: rows of other models that wait meanwhile."""
        limit_s = PrefillLimits.of_step(num_decoding, self._max_stall_ms, self._max_tokens).seconds
        try:
            if self._pass is None:
                self._pass = self._begin(limit_s)
            if self._pass is not None:
                self._advance(self._pass, limit_s)
                self.num_steps += 1
        # Weights, tokens and memory may raise anything.
        except Exception as fault:
            self._fail(fault)

    def _begin(self, limit_s: float) -> _Pass | None:
        """Choose the texts of a pass and embed their tokens; None if there is no memory now."""
        jobs = [job for job in self.jobs if job.left]
        members = choose_members(jobs, self.num_passes, lambda num, width: self._fits(num, width, limit_s))
        width = members[0].num_tokens
        while not self.memory.take(len(members), width):
            if len(members) == 1:
                self._wait_for_memory(members[0])
                return None
            members = members[: len(members) // 2]
        self.is_blocked = False
        self.num_passes += 1
        for member in members:
            member.job.left.remove(member.index)
        tokens, types = (
            np.full((len(members), width), self._model.pad_token, np.int32),
            np.zeros((len(members), width), np.int32),
        )
        for row, member in enumerate(members):
            tokens[row, : member.num_tokens] = member.input.tokens
            if (second := member.input.first_of_second) is not None:
                assert self._model.info.embedding
                types[row, second:] = self._model.info.embedding.second_type
        num_tokens = mx.array([member.num_tokens for member in members])
        begun = _Pass(members, mx.array(0), mx.array(0), width)
        # Known before anything is computed, so that a failure finds the suspects.
        self._pass = begun
        begun.hidden, begun.mask = self._model.encoder.begin(mx.array(tokens), mx.array(types), num_tokens)
        return begun

    def _fits(self, num_texts: int, width: int, limit_s: float) -> bool:
        num_tokens = num_texts * width
        return num_tokens <= self._max_tokens and self._layer_s(num_tokens, width) <= limit_s

    def _layer_s(self, num_tokens: int, width: int) -> float:
        """Return an upper estimate of a layer's seconds: that of a chunk whose tokens attend to a text."""
        return self._costs.seconds(num_tokens, width - num_tokens // 2)

    def _advance(self, running: _Pass, limit_s: float) -> None:
        layers, num_tokens = self._model.encoder.layers, running.num_tokens
        num_fitting = int(limit_s / max(1e-9, self._layer_s(num_tokens, running.width)))
        until = min(len(layers), running.num_layers + max(1, num_fitting))
        num_layers = until - running.num_layers
        start, hidden = time.perf_counter(), running.hidden
        for layer in layers[running.num_layers : until]:
            hidden = layer(hidden, running.mask)
        mx.eval(hidden)
        taken_s = time.perf_counter() - start
        self._costs.observe(num_tokens, running.width - num_tokens // 2, taken_s / num_layers)
        running.hidden, running.num_layers = hidden, until
        if until == len(layers):
            self._finish(running)

    def _finish(self, done: _Pass) -> None:
        """Make the vectors of a pass, and end the requests that are complete."""
        made = [
            self._model.finish(
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

    def _wait_for_memory(self, member: Member) -> None:
        self.is_blocked = True
        if fault := self.memory.fault(member.num_tokens):
            self.is_blocked = False
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
        for member in reversed(self._pass.members if self._pass else ()):
            member.job.left.insert(0, member.index)
        self._leave()

    def _leave(self) -> None:
        """Let go of the pass."""
        self._pass = None
        self.memory.release()
