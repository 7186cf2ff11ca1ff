"""From the queue to the rows: who is admitted, with what of a prompt at hand, and the prefill of the rest."""

from collections import deque
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from config.settings import Settings
from engine import scheduler
from engine.draft_model import DraftModel
from engine.logprobs import Likelihoods
from engine.prefix_cache import PrefixCache
from engine.rows import Caches, Rows, dispatch, make_caches, settle
from engine.sequence import Sequence

PROMPT_LOGPROBS_CHUNK = 128
"""Most tokens of a prompt at once where all their logits are needed: a vocabulary's size each."""

LEAST_SHARED_TOKENS = 32
"""Prompts from this length on wait for another row's prefill of the same one."""

Fail = Callable[[Sequence, Exception], None]


class Intake:
    """Sequences that wait, and those that prefill.

    can_share: whether caches can be cut at any length, and so be of use to another prompt.
    may_ask_model: whether the draft model has to read a sequence's prompt.
    fail: ends a sequence for what was raised on its account.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        can_share: bool,
        prefix_cache: PrefixCache | None,
        draft_model: DraftModel | None,
        may_ask_model: Callable[[Sequence], bool],
        fail: Fail,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self._model = model
        self._settings = settings
        self._can_share = can_share
        self._prefix_cache = prefix_cache
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
        """Let waiting sequences begin while there is room, in order; a suspect runs with nobody beside it.

        Whose prompt is being prefilled for another lets others pass: it takes that one's when it is done.
        members, rows: those that decode.
        """
        for sequence in list(self.waiting):
            running = [*members, *self.prefilling]
            if len(running) >= self._settings.max_rows or any(s.alone for s in running):
                return
            if sequence.alone and running:
                return
            if self._is_prefilling_same(sequence):
                continue
            self.waiting.remove(sequence)
            self.prefilling.append(sequence)
            try:
                found = self._find_prefix(sequence, members, rows)
                sequence.admit(*(found or (make_caches(self._model, self._settings.kv_bits), 0)))
                if self._draft_model and self._may_ask_model(sequence):
                    sequence.draft_caches = self._draft_model.make_caches()
            except Exception as fault:
                self._fail(sequence, fault)

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

    def _is_prefilling_same(self, sequence: Sequence) -> bool:
        """Whether waiting spares this sequence its prefill: as for the choices of one request."""
        if not self._can_share or sequence.request.prompt_logprobs:
            return False
        if len(sequence.tokens) < LEAST_SHARED_TOKENS:
            return False
        return any(s.request.prompt == sequence.request.prompt for s in self.prefilling)

    def _find_prefix(
        self, sequence: Sequence, members: list[Sequence], rows: Rows
    ) -> tuple[Caches, int] | None:
        """Copies of caches with a beginning of its tokens, and how many: of a row, or of one that ended."""
        if sequence.request.prompt_logprobs:
            # All of the prompt has to be computed.
            return None
        num_wanted = len(sequence.tokens) - 1
        if self._can_share and num_wanted:
            for row, member in enumerate(members):
                is_held = rows.lengths[row] >= num_wanted
                if is_held and member.tokens[:num_wanted] == sequence.tokens[:num_wanted]:
                    return rows.extract(row, num_wanted), num_wanted
        return self._prefix_cache.find(sequence.tokens) if self._prefix_cache is not None else None

    def _feed(self, sequence: Sequence, chunk: int) -> None:
        # One chunk in flight per prompt: a cancelled prompt stops within a chunk.
        settle(sequence.caches)
        end = len(sequence.tokens) - 1
        if sequence.request.prompt_logprobs:
            chunk = min(chunk, PROMPT_LOGPROBS_CHUNK)
        if part := sequence.tokens[sequence.num_computed : min(sequence.num_computed + chunk, end)]:
            logits = self._model(mx.array(part)[None], cache=sequence.caches)
            if sequence.request.prompt_logprobs:
                _measure_prompt(sequence, logits[0])
            dispatch(sequence.caches)
            sequence.num_computed += len(part)
        self._feed_draft_model(sequence, chunk)

    def _feed_draft_model(self, sequence: Sequence, chunk: int) -> None:
        start = sequence.num_draft_computed
        part = sequence.tokens[start : min(start + chunk, len(sequence.tokens) - 1)]
        if self._draft_model is None or not sequence.draft_caches or not part:
            return
        try:
            settle(sequence.draft_caches)
            self._draft_model.model(mx.array(part)[None], cache=sequence.draft_caches)
            dispatch(sequence.draft_caches)
            sequence.num_draft_computed += len(part)
        # Drafts are a bonus: the answer needs only the model itself.
        except Exception as fault:
            sequence.give_up_draft_model(fault)


def _measure_prompt(sequence: Sequence, logits: mx.array) -> None:
    """Read how likely the tokens behind those of a chunk were. logits: (chunk, vocabulary)."""
    start = sequence.num_computed + 1
    follows = sequence.tokens[start : start + logits.shape[0]]
    wanted = [sequence.request.top_logprobs or 0] * len(follows)
    likelihoods = Likelihoods(logits, mx.array(follows), wanted).read()
    sequence.prompt_logprobs += [one for one in likelihoods if one is not None]
