"""From the queue to the rows: who is admitted, with what of a prompt at hand, and the prefill of the rest."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import mlx.core as mx

from config.settings import Settings
from engine.kv_cache.rows import Rows, evaluate, evaluate_async
from engine.sampling.logprobs import Likelihoods
from engine.scheduler import prefill_budget as scheduler
from engine.scheduler.memory_budget import MemoryBudget
from engine.scheduler.prefix_lookup import PrefixLookup
from engine.sequence import Sequence
from engine.speculative.draft_model.model import DraftModel

PROMPT_LOGPROBS_CHUNK = 128
"""Most tokens of a prompt at once where all their logits are needed: a vocabulary's size each."""

MAX_PASSED = 16
"""One that does not fit into memory yet lets so many smaller ones pass; then all wait for it."""

Fail = Callable[[Sequence, Exception], None]


class RequestQueue:
    """Sequences that wait, and those that prefill.

    only: where given, nobody else may begin.
    beginnings: where the beginnings of prompts are had from.
    may_ask_model: whether the draft model has to read a sequence's prompt.
    fail: ends a sequence for what was raised on its account.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        memory_budget: MemoryBudget,
        prefix_lookup: PrefixLookup,
        draft_model: DraftModel | None,
        may_ask_model: Callable[[Sequence], bool],
        fail: Fail,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.only: Collection[Sequence] | None = None
        self._model = model
        self._settings = settings
        self._memory_budget = memory_budget
        self._prefix_lookup = prefix_lookup
        self._draft_model = draft_model
        self._may_ask_model = may_ask_model
        self._fail = fail

    def drop_ended(self) -> None:
        """Forget those that ended before they had a row."""
        if any(s.ended for s in self.prefilling):
            self.prefilling = [s for s in self.prefilling if not s.ended]
        if any(s.ended for s in self.waiting):
            self.waiting = deque(s for s in self.waiting if not s.ended)

    def admit(self, members: list[Sequence], rows: Rows) -> None:
        """Let waiting sequences begin while there is room, in order.

        Who waits for another's prefill, to take the beginning that they share, lets others pass. So does a
        long prompt while half of the rows prefill long ones: their turn comes no later, and short ones find
        a row. So does, a few times, who does not fit into memory.
        members, rows: those that decode.
        """
        too_large: list[Sequence] = []
        for sequence in list(self.waiting):
            running = [*members, *self.prefilling]
            if len(running) >= self._settings.max_rows:
                return
            if self.only is not None and sequence not in self.only:
                continue
            if self._prefix_lookup.is_loading(sequence, may_wait=not running):
                continue
            if self._prefix_lookup.awaits(sequence, self.prefilling) or self._is_one_too_many(sequence):
                continue
            if not self._memory_budget.may_begin(sequence, members, self.prefilling):
                too_large.append(sequence)
                if sequence.num_passed >= MAX_PASSED:
                    return
                continue
            for passed in too_large:
                passed.num_passed += 1
            self.waiting.remove(sequence)
            others = list(self.prefilling)
            self.prefilling.append(sequence)
            try:
                sequence.admit(*self._prefix_lookup.find(sequence, members, rows, others))
                self._begin_draft_model(sequence)
            except Exception as fault:
                self._fail(sequence, fault)

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """These had begun; unless they have ended they start over, in the queue where they once were."""
        begun = [s for s in sequences if not s.ended]
        for sequence in begun:
            sequence.restart()
        self.waiting = deque(sorted([*begun, *self.waiting], key=lambda s: s.submitted_at))

    def prefill(self, num_rows: int, join: Callable[[Sequence], None]) -> bool:
        """Feed prompts within the budget that num_rows leave; those that are complete join.

        Returns whether anything was fed.
        """
        if not self.prefilling:
            return False
        s = self._settings
        budget = scheduler.prefill_budget(num_rows, s.step_token_budget, s.prefill_chunk_tokens)
        chunks = scheduler.plan_prefill([s.num_to_prefill for s in self.prefilling], budget)
        for sequence, chunk in zip(list(self.prefilling), chunks, strict=True):
            if sequence.ended:
                continue
            try:
                if chunk:
                    self._feed(sequence, chunk)
                if sequence.num_to_prefill == 0:
                    self.prefilling.remove(sequence)
                    join(sequence)
            except Exception as fault:
                self._fail(sequence, fault)
        return any(chunks)

    def _is_one_too_many(self, sequence: Sequence) -> bool:
        """Whether it is long, and half of the rows prefill long prompts already."""
        chunk = self._settings.prefill_chunk_tokens
        num_long = sum(s.num_to_prefill > chunk for s in self.prefilling)
        return num_long >= max(1, self._settings.max_rows // 2) and sequence.num_to_prefill > chunk

    def _feed(self, sequence: Sequence, chunk: int) -> None:
        # One chunk in flight per prompt: a cancelled prompt stops within a chunk.
        evaluate(sequence.caches)
        end = len(sequence.tokens) - 1
        if sequence.request.prompt_logprobs:
            chunk = min(chunk, PROMPT_LOGPROBS_CHUNK)
        if ahead := [edge for edge in sequence.edges if edge > sequence.num_computed]:
            chunk = min(chunk, min(ahead) - sequence.num_computed)
        if part := sequence.tokens[sequence.num_computed : min(sequence.num_computed + chunk, end)]:
            logits = self._model(mx.array(part)[None], cache=sequence.caches)
            if sequence.request.prompt_logprobs:
                _measure_prompt(sequence, logits[0])
            evaluate_async(sequence.caches)
            sequence.num_computed += len(part)
            if sequence.num_computed in sequence.edges:
                self._prefix_lookup.keep_prefilled(sequence)
        self._feed_draft_model(sequence, chunk)

    def _begin_draft_model(self, sequence: Sequence) -> None:
        if self._draft_model is None:
            return
        try:
            if self._may_ask_model(sequence):
                give_up = sequence.give_up_draft_model
                sequence.draft_reader = self._draft_model.make_reader(len(sequence.tokens), give_up)
        # Drafts are a bonus: the answer needs only the model itself.
        except Exception as fault:
            sequence.give_up_draft_model(fault)

    def _feed_draft_model(self, sequence: Sequence, chunk: int) -> None:
        reader = sequence.draft_reader
        if self._draft_model is None or reader is None:
            return
        try:
            if part := reader.next_chunk(sequence.tokens, chunk):
                evaluate(reader.caches)
                self._draft_model.model(mx.array(list(part))[None], cache=reader.caches)
                evaluate_async(reader.caches)
                reader.num_computed += len(part)
        except Exception as fault:
            sequence.give_up_draft_model(fault)


def _measure_prompt(sequence: Sequence, logits: mx.array) -> None:
    """Read how likely the tokens behind those of a chunk were. logits: (chunk, vocabulary)."""
    start = sequence.num_computed + 1
    follows = sequence.tokens[start : start + logits.shape[0]]
    wanted = [sequence.request.top_logprobs or 0] * len(follows)
    likelihoods = Likelihoods(logits, mx.array(follows), wanted).read()
    sequence.prompt_logprobs += [one for one in likelihoods if one is not None]
