"""The worker: one turn after another on the thread that owns MLX.

A turn is: retire ended rows, admit waiting requests, dispatch a decode step, read the step that the
last turn dispatched, then prefill within the budget. The device computes step n + 1 while step n is
detokenised and sent. Without prompts to prefill or prefixes to keep, that read is the one wait.
"""

import logging
from collections import deque
from dataclasses import dataclass

import mlx.core as mx

from config.settings import Settings
from engine import scheduler
from engine.loading import LoadedModel
from engine.prefix_cache import PrefixCache
from engine.request import Failed
from engine.rows import can_batch, dispatch, make_caches, make_rows, settle
from engine.sampling import Sampler
from engine.sequence import Sequence

log = logging.getLogger("reprise.engine")

CLEAR_EVERY_STEPS = 256


@dataclass
class Step:
    """A dispatched decode step: who took part, in row order, and their (rows,) tokens, not yet read."""

    members: list[Sequence]
    tokens: mx.array


class Worker:
    """All sequences in the engine and the device state behind them. Used by one thread only."""

    def __init__(self, loaded: LoadedModel, settings: Settings) -> None:
        self.model = loaded.model
        self.vocab_size = loaded.info.vocab_size
        self.settings = settings
        self.batched = can_batch(self.model)
        # Caches that cannot be cut at any length are of no use to another prompt.
        budget_bytes = settings.prefix_cache_bytes if self.batched else 0
        self.prefix_cache = PrefixCache(budget_bytes) if budget_bytes else None
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.num_steps = 0
        self._clear_rows()

    def _clear_rows(self) -> None:
        self.members: list[Sequence] = []
        self.rows = make_rows(self.model, self.batched)
        self.sampler: Sampler | None = None
        self.feed = mx.array([], mx.int32)
        self.unread: Step | None = None

    @property
    def live(self) -> list[Sequence]:
        """Every sequence that has not had its terminal event."""
        return [s for s in (*self.members, *self.prefilling, *self.waiting) if not s.ended]

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self.members or self.prefilling or self.waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for admission."""
        self.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence wherever it is; its row is freed by the next turn."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                sequence.fail(Failed("cancelled", "the client left"))

    def turn(self) -> None:
        """Advance everything by one step."""
        self._retire()
        self._admit()
        previous, self.unread = self.unread, None
        fault: Exception | None = None
        try:
            self._decode()
        except Exception as raised:
            fault = raised
        # Even then the step that is still unread is good: its tokens are kept before the rows start over.
        if previous is not None and not self._read(previous):
            return
        if fault is not None:
            self._start_over(list(self.members), fault)
            return
        self._prefill()
        self.num_steps += 1
        if self.num_steps % CLEAR_EVERY_STEPS == 0:
            mx.clear_cache()

    def _retire(self) -> None:
        """Free the rows of ended sequences and forget those that ended before they had one."""
        if any(s.ended for s in self.prefilling):
            self.prefilling = [s for s in self.prefilling if not s.ended]
        if any(s.ended for s in self.waiting):
            self.waiting = deque(s for s in self.waiting if not s.ended)
        if not any(s.ended for s in self.members):
            return
        order = list(range(len(self.members)))
        for row in reversed(range(len(self.members))):
            if self.members[row].ended:
                self._keep_prefix(row)
                self.rows.remove(row)
                self.members[row], order[row] = self.members[-1], order[-1]
                self.members.pop()
                order.pop()
        self.feed = self.feed[mx.array(order, mx.int32)]
        self.sampler = None

    def _keep_prefix(self, row: int) -> None:
        if self.prefix_cache is None:
            return
        tokens = self.members[row].tokens
        length = min(self.rows.lengths[row], len(tokens))
        try:
            if length:
                self.prefix_cache.put(tokens[:length], self.rows.extract(row, length))
        except Exception:
            # Nobody asked for this copy, so nobody fails for it.
            log.warning("a prefix could not be kept; dropping all of them", exc_info=True)
            self.prefix_cache.clear()

    def _admit(self) -> None:
        """Give free rows to waiting sequences, in order; a suspect runs with nobody beside it."""
        while self.waiting:
            running = [*self.members, *self.prefilling]
            sequence = self.waiting[0]
            if len(running) >= self.settings.max_rows or any(s.alone for s in running):
                return
            if sequence.alone and running:
                return
            self.prefilling.append(self.waiting.popleft())
            try:
                found = self.prefix_cache.find(sequence.tokens) if self.prefix_cache is not None else None
                sequence.admit(*(found or (make_caches(self.model), 0)))
            except Exception as fault:
                self._fail(sequence, fault)

    def _decode(self) -> None:
        """Dispatch one token for every row; nothing is read."""
        if not self.members:
            return
        for row, sequence in enumerate(self.members):
            if sequence.penalties and sequence.num_dispatched:
                sequence.penalties.observe(self.feed[row : row + 1])
        if self.sampler is None:
            settings = [(s.request.sampling, s.penalties) for s in self.members]
            self.sampler = Sampler(settings, self.vocab_size)
        logits = self.rows.forward(self.feed[:, None])[:, -1]
        tokens = self.sampler.sample(logits, [s.next_position for s in self.members])
        mx.async_eval(tokens)
        for sequence in self.members:
            sequence.num_dispatched += 1
        self.feed = tokens
        self.unread = Step(list(self.members), tokens)

    def _prefill(self) -> None:
        """Feed prompts within the budget; those that are complete join the rows."""
        if not self.prefilling:
            return
        s = self.settings
        budget = scheduler.prefill_budget(len(self.members), s.step_token_budget, s.prefill_chunk_tokens)
        chunks = scheduler.plan_prefill([s.num_to_prefill for s in self.prefilling], budget)
        for sequence, chunk in zip(list(self.prefilling), chunks, strict=True):
            if sequence.ended:
                continue
            try:
                if chunk:
                    self._prefill_chunk(sequence, chunk)
                if sequence.num_to_prefill == 0:
                    self.prefilling.remove(sequence)
                    self._join(sequence)
            except Exception as fault:
                self._fail(sequence, fault)

    def _prefill_chunk(self, sequence: Sequence, chunk: int) -> None:
        # One chunk in flight per prompt: a cancelled prompt stops within a chunk.
        settle(sequence.caches)
        start = sequence.num_computed
        tokens = mx.array(sequence.tokens[start : start + chunk])[None]
        self.model(tokens, cache=sequence.caches)
        dispatch(sequence.caches)
        sequence.num_computed += chunk

    def _join(self, sequence: Sequence) -> None:
        """A prefilled sequence becomes the last row; its last token is fed by the next step."""
        sequence.make_penalties(self.vocab_size)
        self.rows.add(sequence.caches, sequence.num_computed)
        sequence.caches = []
        self.members.append(sequence)
        last = mx.array(sequence.tokens[-1:], self.feed.dtype)
        self.feed = mx.concatenate([self.feed, last]) if len(self.members) > 1 else last
        self.sampler = None

    def _read(self, step: Step) -> bool:
        """Wait for a step's tokens and commit them; False if the step turns out to have failed."""
        try:
            tokens: list[int] = step.tokens.tolist()  # type: ignore[assignment]
        except Exception as fault:
            self._start_over(step.members, fault)
            return False
        for sequence, token in zip(step.members, tokens, strict=True):
            if not sequence.ended:
                try:
                    sequence.commit(token)
                except Exception as fault:
                    self._fail(sequence, fault)
        return True

    def _start_over(self, suspects: list[Sequence], fault: Exception) -> None:
        """A step over the suspects failed, and all rows with it. Whoever was alone in it is to blame.

        Of several each is tried alone; the others just begin again. That costs a prefill and changes no
        token: noise is keyed by position.
        """
        rows = self.members
        self._clear_rows()
        if len(suspects) == 1:
            self._fail(suspects[0], fault)
        else:
            log.warning("a step over %d rows failed (%s); trying each alone", len(suspects), fault)
        for sequence in reversed([s for s in rows if not s.ended]):
            sequence.alone = sequence in suspects
            sequence.restart()
            self.waiting.appendleft(sequence)

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        if sequence.ended:
            return
        log.error("request %s failed", sequence.request.id, exc_info=fault)
        sequence.fail(Failed("request", f"generation failed: {fault}"))
