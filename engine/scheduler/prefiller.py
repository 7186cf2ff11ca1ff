"""Prefill: the prompts that are being computed, in chunks, before their sequences join the rows."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from config.settings import Settings
from engine.kv_cache.rows import evaluate, evaluate_async
from engine.sampling.logprobs import Likelihoods
from engine.scheduler import prefill_budget
from engine.scheduler.draft_prompts import DraftPrompts
from engine.scheduler.memory_budget import PROMPT_LOGPROBS_CHUNK
from engine.scheduler.prefix_lookup import PrefixLookup
from engine.sequence import Sequence
from engine.step_error import StepError


class Prefiller:
    """Feeds chunks of prompts to the target model and, where it will draft, to the draft model.

    prefilling: the sequences whose prompts are being computed, in the order of their admission.
    draft_prompts: feeds the draft model; None without one.
    """

    def __init__(
        self, model: Any, settings: Settings, prefix_lookup: PrefixLookup, draft_prompts: DraftPrompts | None
    ) -> None:
        self.prefilling: list[Sequence] = []
        self._model = model
        self._settings = settings
        self._prefix_lookup = prefix_lookup
        self._draft_prompts = draft_prompts

    def drop_ended(self) -> None:
        """Forget sequences that ended."""
        if any(s.ended for s in self.prefilling):
            self.prefilling = [s for s in self.prefilling if not s.ended]

    def begin(self, sequence: Sequence) -> None:
        """Prefill a sequence that was just admitted."""
        self.prefilling.append(sequence)
        if self._draft_prompts:
            self._draft_prompts.begin(sequence)

    def run(self, num_rows: int, join: Callable[[Sequence], None]) -> bool:
        """Feed prompts within the budget that num_rows decoding rows leave; returns whether any was fed.

        join: called with each sequence whose prompt is complete. Raises StepError if join does.
        """
        if not self.prefilling:
            return False
        settings = self._settings
        budget = prefill_budget.prefill_budget(
            num_rows, settings.step_token_budget, settings.prefill_chunk_tokens
        )
        chunks = prefill_budget.plan_prefill([s.num_to_prefill for s in self.prefilling], budget)
        for sequence, chunk in zip(list(self.prefilling), chunks, strict=True):
            if sequence.ended:
                continue
            try:
                if chunk:
                    self._feed(sequence, chunk)
                if sequence.num_to_prefill == 0:
                    join(sequence)
                    # Only now: if the engine dies meanwhile, the sequence must still be found.
                    self.prefilling.remove(sequence)
            except StepError:
                raise
            except Exception as fault:
                sequence.fail_with(fault)
        return any(chunks)

    def _feed(self, sequence: Sequence, chunk: int) -> None:
        prefill = sequence.prefill
        # Wait for the last chunk: with one in flight per prompt, a cancelled prompt stops within a chunk.
        evaluate(prefill.caches)
        end = len(sequence.tokens) - 1
        if sequence.request.prompt_logprobs:
            chunk = min(chunk, PROMPT_LOGPROBS_CHUNK)
        if ahead := [length for length in prefill.keep_at if length > prefill.num_computed]:
            chunk = min(chunk, min(ahead) - prefill.num_computed)
        if part := sequence.tokens[prefill.num_computed : min(prefill.num_computed + chunk, end)]:
            logits = self._model(mx.array(part)[None], cache=prefill.caches)
            if sequence.request.prompt_logprobs:
                _measure_logprobs(sequence, logits[0])
            evaluate_async(prefill.caches)
            prefill.num_computed += len(part)
            if prefill.num_computed in prefill.keep_at:
                self._prefix_lookup.keep_prefilled(sequence)
        if self._draft_prompts:
            self._draft_prompts.feed(sequence, chunk)


def _measure_logprobs(sequence: Sequence, logits: mx.array) -> None:
    """Add the log probabilities of the tokens that follow those of a chunk. logits: (chunk, vocabulary)."""
    start = sequence.prefill.num_computed + 1
    following = sequence.tokens[start : start + logits.shape[0]]
    wanted = [sequence.request.top_logprobs or 0] * len(following)
    likelihoods = Likelihoods(logits, mx.array(following), wanted).read()
    sequence.prefill.logprobs += [one for one in likelihoods if one is not None]
