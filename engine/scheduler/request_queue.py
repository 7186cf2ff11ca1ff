"""The sequences that wait for a row or prefill, and when each goes on.

Waiting sequences are admitted to prefill, where their prompts are fed in chunks; then they join the rows.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import mlx.core as mx

from reprise.config.settings import Settings
from reprise.engine.batch.batch import Device
from reprise.engine.batch.sequence import Sequence, StepError
from reprise.engine.interface.spans import span
from reprise.engine.kv_cache.per_row import cache_arrays
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.memory.prefill_plan import PROMPT_LOGPROBS_CHUNK, PrefillCosts, PrefillPlanner
from reprise.engine.sampling.logits import Likelihoods
from reprise.engine.scheduler.prefixes import Checkpoints, Prefixes
from reprise.engine.speculative.heads.head import Taps
from reprise.engine.vision.image_features import Looking, Sight

SNAP_SHARE = 0.75
"""A chunk ends where state is to be stored if that is past this share of it; otherwise it is cut there."""


class Prefiller:
    """Feeds chunks of prompts to the target model.

    prefilling: the sequences whose prompts are being computed, in the order of their admission.
    checkpoints: chooses the lengths at which state is stored. device: computes the chunks, like steps.
    planner: decides how many tokens of each prompt a step feeds.
    num_done: chunks, and slices of image encoding, that are computed; any thread may read it.
    """

    def __init__(
        self,
        model: Any,
        prefixes: Prefixes,
        checkpoints: Checkpoints,
        device: Device,
        taps: Taps | None = None,
    ) -> None:
        """taps: what a head of the target reads, if there is one."""
        self.prefilling: list[Sequence] = []
        self._taps = taps
        self.sight: Sight | None = None
        self.num_done = 0
        self._model = model
        self._prefixes, self.checkpoints = prefixes, checkpoints
        self.device = device
        self.planner = PrefillPlanner(device)

    def begin(self, sequence: Sequence) -> None:
        """Prefill a sequence that was just admitted."""
        self.prefilling.append(sequence)
        self.prepare(sequence)
        sequence.report_progress(sequence.prefill.num_computed)
        if sequence.needs_prompt_logprobs:
            # The first token follows none, so no chunk measures it.
            sequence.emit_prompt_logprobs(0, [None])

    def prepare(self, sequence: Sequence) -> None:
        """Plan what to keep of a sequence's prompt, and how to encode its images."""
        if sequence.request.images and self.sight:
            sequence.prefill.looking = Looking(self.sight, sequence.request.images)
        self.checkpoints.plan(sequence, self.planner.max_cuts(sequence))

    def read(self, sequence: Sequence, share: float) -> None:
        """Feed the next chunk of a prompt that no request waits for, and wait for it.

        share: the chunk's share of the time that one of a lone prompt may take.
        """
        [chunk] = self.planner.plan([sequence], 0, share)
        self._advance(sequence, chunk, 0)
        self.device.settle()
        self.finish_keeping()

    def run(self, num_rows: int, join: Callable[[Sequence], None]) -> bool:
        """Wait for the chunks in flight, then feed the next ones; return whether any was fed.

        num_rows: rows that decode, and wait while prompts are computed.
        join: called with each sequence whose prompt is complete.
        Raises StepError if a step or a chunk of a sequence that has joined fails.
        """
        # With one chunk in flight per prompt, a cancelled prompt stops within a chunk.
        self.device.settle()
        self.finish_keeping()
        if not self.prefilling:
            return False
        chunks = self.planner.plan(self.prefilling, num_rows)
        for sequence, chunk in zip(list(self.prefilling), chunks, strict=True):
            if sequence.ended:
                continue
            try:
                if chunk:
                    self._advance(sequence, chunk, num_rows)
                if sequence.num_to_prefill == 0 and not sequence.needs_prompt_logprobs:
                    self._complete(sequence, join)
            except StepError:
                raise
            except Exception as fault:
                sequence.fail_with(fault)
        return any(chunks)

    def _advance(self, sequence: Sequence, chunk: int, num_rows: int) -> None:
        """Encode a slice of the image that a prompt has reached, or feed the prompt's next tokens."""
        if (looking := sequence.prefill.looking) and looking.num_left:
            self._look(sequence, looking, chunk, num_rows)
        else:
            self._feed(sequence, chunk, self.planner.costs_of(sequence, num_rows))

    def _complete(self, sequence: Sequence, join: Callable[[Sequence], None]) -> None:
        """Let a sequence join the rows: its prompt is complete."""
        if self.checkpoints.wants_end(sequence):
            self._prefixes.start_keeping(sequence, sequence.prefill.num_computed)
        join(sequence)
        # Only now: if the engine dies meanwhile, the sequence must still be found.
        self.prefilling.remove(sequence)

    def _look(self, sequence: Sequence, looking: Looking, num_units: int, num_rows: int) -> None:
        """Encode a slice of the image that a prompt has reached."""
        drafts = sequence.drafts

        def done(kind: str, units: int, seconds: float | None) -> None:
            self.num_done += 1
            self.planner.tower_costs[num_rows > 0, kind].observe(units, 0, seconds)
            if drafts and seconds:
                drafts.slowdown_budget.prefill_s += seconds

        least = 1
        # A slice does at least a row, whatever that takes: after the first one none that is not planned.
        while num_units >= least and looking.stages_left and not sequence.ended:
            kind, num_done, arrays = looking.advance(num_units)
            # A slice that ends within a unit counts as one.
            units = max(1, num_done)
            fail = partial(self._fail, sequence)
            self.device.dispatch(arrays, partial(done, kind, units), fail)
            num_units -= units
            least = max(1, looking.least_units)

    def _feed(self, sequence: Sequence, chunk: int, costs: PrefillCosts) -> None:
        """Feed the next tokens of a prompt, split where state is to be stored."""
        prefill = sequence.prefill
        if sequence.needs_prompt_logprobs:
            chunk = min(chunk, PROMPT_LOGPROBS_CHUNK)
        end = min(prefill.num_computed + chunk, len(sequence.tokens) - 1)
        if prefill.looking:
            end = prefill.looking.end_of(prefill.num_computed, end)
        within = (length for length in prefill.kept_lengths if prefill.num_computed < length < end)
        cuts = [] if self._prefixes.can_look_back else sorted(within)
        if cuts and end < len(sequence.tokens) - 1 and cuts[-1] >= end - (1 - SNAP_SHARE) * chunk:
            end = cuts.pop()
        for stop in (*cuts, end):
            if stop > prefill.num_computed and not sequence.ended:
                self._feed_part(sequence, stop, costs)

    def _feed_part(self, sequence: Sequence, stop: int, costs: PrefillCosts) -> None:
        """Feed the tokens of a prompt up to a length, then store state where it is wanted."""
        prefill = sequence.prefill
        num_before = prefill.num_computed
        logits, states = self._forward(sequence, stop)
        measured = _likelihoods(sequence, logits[0]) if sequence.needs_prompt_logprobs else None
        arrays = [*cache_arrays(prefill.caches), *states, *(measured.arrays if measured else ())]
        # Not `prefill`: it would keep the caches from the rows that take them over.
        num_fed, drafts = stop - num_before, sequence.drafts

        def done(seconds: float | None) -> None:
            self.num_done += 1
            costs.observe(num_fed, num_before, seconds)
            if drafts and seconds:
                drafts.slowdown_budget.prefill_s += seconds
            if measured and not sequence.ended:
                with span("prefill"):
                    sequence.emit_prompt_logprobs(num_before + 1, measured.fetch())
            sequence.report_progress(num_before + num_fed)

        self.device.dispatch(arrays, done, lambda fault: self._fail(sequence, fault))
        prefill.num_computed = stop
        prefill.widest_chunk = max(prefill.widest_chunk, num_fed)
        for length in sorted(prefill.kept_lengths):
            if num_before < length <= stop and not sequence.ended:
                self._prefixes.start_keeping(sequence, length)

    def finish_keeping(self) -> None:
        """Put the state that chunks reached into the prefix cache once they are computed."""
        if self._prefixes.copies:
            self.device.settle()
            self._prefixes.finish_keeping()

    def _forward(self, sequence: Sequence, stop: int) -> tuple[mx.array, list[mx.array]]:
        """Feed the tokens up to a length; return their logits, and their states if a head is to read them."""
        caches, start = sequence.prefill.caches, sequence.prefill.num_computed
        is_read = sequence.prefill.keeps_states or (sequence.drafts and sequence.drafts.uses_model)
        if looking := sequence.prefill.looking:
            return looking.feed(sequence.tokens, start, stop, caches), []
        tokens = mx.array(sequence.tokens[start:stop])[None]
        if self._taps is None or not is_read:
            return self._model(tokens, cache=caches), []
        with self._taps.tapping() as tapped:
            logits = self._model(tokens, cache=caches)
        states = [each[0] for each in tapped.states()]
        for each in states:
            sequence.prefill.states.add(each)
        return logits, states

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        """Handle a chunk whose computation failed. Raises StepError if its sequence has joined the rows."""
        self._prefixes.drop_copies()
        if sequence in self.prefilling:
            sequence.fail_with(fault)
        elif not sequence.ended:
            raise StepError([sequence], fault) from fault


def _likelihoods(sequence: Sequence, logits: mx.array) -> Likelihoods:
    """Return the likelihoods of the tokens that follow those of a chunk. logits: (chunk, vocabulary)."""
    start = sequence.prefill.num_computed + 1
    following = sequence.tokens[start : start + logits.shape[0]]
    wanted = [sequence.request.top_logprobs or 0] * len(following)
    return Likelihoods(logits, mx.array(following), wanted)


MAX_OVERTAKEN = 16
"""How many smaller sequences may overtake one that does not fit into memory; then all wait for it."""

MAX_SEARCH_S = 0.002
"""Seconds that a step may search prefixes of waiting prompts, in files and in other prompts."""

LONG_PROMPT_TOKENS = 256
"""A longer prompt counts as long: not all rows may prefill such prompts."""


class RequestQueue:
    """Admits waiting sequences to prefill, first come first served except as admit() says.

    waiting: in the order of their submission.
    only: if not None, no other sequence may be admitted.
    """

    def __init__(
        self,
        settings: Settings,
        memory_budget: MemoryBudget,
        prefixes: Prefixes,
        prefiller: Prefiller,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.only: Collection[Sequence] | None = None
        self.memory_budget = memory_budget
        self.prefixes = prefixes
        self.prefiller = prefiller
        self._settings = settings

    def drop_ended(self) -> None:
        """Forget sequences that ended while they waited or prefilled."""
        self.prefixes.drop_loads()
        self.prefiller.prefilling = [s for s in self.prefiller.prefilling if not s.ended]
        if any(s.ended for s in self.waiting):
            self.waiting = deque(s for s in self.waiting if not s.ended)

    @span("admission")
    def admit(self, members: list[Sequence], rows: Rows) -> None:
        """Admit waiting sequences, in order, while rows and memory last.

        Three kinds of sequences let later ones overtake them: one that waits until another has prefilled the
        prefix that both share; one with a long prompt while half of the rows prefill long prompts, so that
        short ones still find a row; and, up to MAX_OVERTAKEN times, one that does not fit into memory. Once a
        step has searched for MAX_SEARCH_S, none overtakes any more. Under memory pressure one runs at a time.

        members, rows: the sequences that decode, and their rows.
        """
        too_large: list[Sequence] = []
        self.prefixes.searched_s = 0.0
        # Other models have work of their own.
        may_be_long, may_wait = self._may_begin_long(), self.memory_budget.shared is None
        for sequence in list(self.waiting):
            prefilling = self.prefiller.prefilling
            num_running = len(members) + len(prefilling)
            if num_running >= (1 if self.memory_budget.is_tight else self._settings.max_rows):
                return
            if self.only is not None and sequence not in self.only:
                continue
            is_loading = self.prefixes.is_loading(sequence, may_wait and not num_running)
            # One wait is enough: meanwhile nobody is heard.
            may_wait = may_wait and not is_loading
            must_wait = (
                is_loading
                or self.prefixes.awaits(sequence, prefilling)
                or (not may_be_long and self._is_long(sequence))
            )
            has_searched_long = self.prefixes.searched_s > MAX_SEARCH_S
            if must_wait:
                if has_searched_long:
                    return
                continue
            if not self.memory_budget.may_begin(sequence, members, prefilling):
                too_large.append(sequence)
                if sequence.num_overtaken >= MAX_OVERTAKEN or has_searched_long:
                    return
                continue
            for overtaken in too_large:
                overtaken.num_overtaken += 1
            self.prefiller.finish_keeping()
            try:
                sequence.admit(*self.prefixes.find(sequence, members, rows, prefilling))
                self.prefiller.begin(sequence)
            except Exception as fault:
                sequence.fail_with(fault)
            # Only now: if the engine dies meanwhile, the sequence must still be found.
            self.waiting.remove(sequence)
            may_be_long = self._may_begin_long()

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """Put running sequences back into the queue at their old positions, unless they have ended."""
        running = [s for s in sequences if not s.ended]
        for sequence in running:
            sequence.restart()
        self.waiting = deque(sorted([*running, *self.waiting], key=lambda s: s.timing.submitted_at))

    def _may_begin_long(self) -> bool:
        """Whether fewer than half of the rows prefill long prompts, so that another one may begin."""
        num_long = sum(self._is_long(s) for s in self.prefiller.prefilling)
        return num_long < max(1, self._settings.max_rows // 2)

    def _is_long(self, sequence: Sequence) -> bool:
        return sequence.num_to_prefill > min(LONG_PROMPT_TOKENS, self._settings.prefill_chunk_tokens)
