"""The draft model's prefill: which prompts it reads, and its chunks beside those of the target model."""

from functools import partial

import mlx.core as mx

from engine.kv_cache.rows import cache_arrays
from engine.scheduler.prefill_costs import PrefillCosts
from engine.scheduler.speculation import Planner
from engine.scheduler.step_clock import Dispatch
from engine.sequence import Sequence
from engine.speculative.draft_model.model import DraftModel
from engine.speculative.proposers import Proposers


class DraftPrompts:
    """Lets the draft model read the prompts of requests for which it may draft.

    A fault ends only the draft model's part: the answer needs the target model alone.
    costs: what its chunks cost.
    """

    def __init__(self, draft_model: DraftModel, proposers: Proposers, planner: Planner) -> None:
        self.costs = PrefillCosts()
        self._draft_model = draft_model
        self._proposers = proposers
        self._planner = planner

    def begin(self, sequence: Sequence) -> None:
        """Give the sequence a draft reader if the draft model is to read its prompt."""
        try:
            if self._is_wanted(sequence):
                give_up = sequence.give_up_draft_model
                sequence.prefill.draft_reader = self._draft_model.make_reader(len(sequence.tokens), give_up)
        except Exception as fault:
            sequence.give_up_draft_model(fault)

    def feed(self, sequence: Sequence, chunk: int, dispatch: Dispatch) -> None:
        """Feed the draft model up to chunk of its own tokens, if it reads this prompt, without waiting."""
        reader = sequence.prefill.draft_reader
        if reader is None:
            return
        try:
            if part := reader.next_chunk(sequence.tokens, chunk):
                self._draft_model.model(mx.array(list(part))[None], cache=reader.caches)
                observe = partial(self.costs.observe, len(part), reader.num_computed)
                dispatch(cache_arrays(reader.caches), observe, sequence.give_up_draft_model)
                reader.num_computed += len(part)
        except Exception as fault:
            sequence.give_up_draft_model(fault)

    def _is_wanted(self, sequence: Sequence) -> bool:
        """Whether the draft model may draft for the sequence and should therefore read its prompt."""
        proposers = self._proposers
        has_stopped = sequence.drafts is not None and not sequence.drafts.uses_model
        if has_stopped or not proposers.may_ask_model(sequence.request):
            return False
        pays = self._planner.model_pays(proposers.new_forecast(), proposers.limit)
        return proposers.prompt_gate.should_read(pays)
