"""Prefill: the prompts that are being computed, in chunks, before their sequences join the rows."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import mlx.core as mx

from reprise.config.settings import Settings
from reprise.engine.batch.batch import Device
from reprise.engine.batch.sequence import Sequence, StepError
from reprise.engine.interface.spans import span
from reprise.engine.kv_cache.per_row import cache_arrays
from reprise.engine.memory.estimate import PROMPT_LOGPROBS_CHUNK
from reprise.engine.memory.prefill import PrefillCosts, PrefillLimits, Seconds, plan_prefill
from reprise.engine.sampling.logits import Likelihoods
from reprise.engine.scheduler.kept_prefixes import Checkpoints, KeptPrefixes
from reprise.engine.speculative.heads.head import Taps
from reprise.engine.vision.image_features import Looking, Sight

MAX_CUT_SHARE = 0.02
"""Share of a prompt's time that it may take longer because state is kept of it for later prompts."""

MIN_CUT_TOKENS = 50
"""Tokens of a prompt for each of these cuts, where the time is not known."""

SNAP_SHARE = 0.75
"""A chunk ends where state is to be kept rather than is cut there, if that is past this share of it."""


class Prefiller:
    """Feeds chunks of prompts to the target model.

    prefilling: the sequences whose prompts are being computed, in the order of their admission.
    device: computes the chunks, as it does the steps.
    num_done: chunks, and slices of the tower's work, that are computed; any thread may read it.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        kept: KeptPrefixes,
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
        self._settings = settings
        self._kept, self._checkpoints = kept, checkpoints
        self.device = device
        # By whether rows decode, and whether log probabilities are wanted. A model's chunks of 2,048 tokens
        # say little about its chunks of 32.
        self._costs: defaultdict[tuple[bool, bool], PrefillCosts] = defaultdict(PrefillCosts)
        # Of the tower's units of work, by whether rows decode, and the kind of stage.
        self._tower_costs: defaultdict[tuple[bool, str], PrefillCosts] = defaultdict(PrefillCosts)
        # Steps since the oldest prompt was fed.
        self._num_passed = 0

    def drop_ended(self) -> None:
        """Forget sequences that ended."""
        if self.prefilling and any(s.ended for s in self.prefilling):
            self.prefilling = [s for s in self.prefilling if not s.ended]

    def begin(self, sequence: Sequence) -> None:
        """Prefill a sequence that was just admitted."""
        self.prefilling.append(sequence)
        if sequence.request.images and self.sight:
            sequence.prefill.looking = Looking(self.sight, sequence.request.images)
        self._checkpoints.plan(sequence, self._max_cuts(sequence))
        sequence.report_progress(sequence.prefill.num_computed)
        if sequence.needs_prompt_logprobs:
            # The first token follows none, so no chunk measures it.
            sequence.emit_prompt_logprobs(0, [None])

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
        chunks = self._plan(num_rows)
        for sequence, chunk in zip(list(self.prefilling), chunks, strict=True):
            if sequence.ended:
                continue
            try:
                if chunk and (looking := sequence.prefill.looking) and looking.num_left:
                    self._look(sequence, looking, chunk, num_rows)
                elif chunk:
                    self._feed(sequence, chunk, self._costs_of(sequence, num_rows))
                if sequence.num_to_prefill == 0 and not sequence.needs_prompt_logprobs:
                    self._complete(sequence, join)
            except StepError:
                raise
            except Exception as fault:
                sequence.fail_with(fault)
        return any(chunks)

    def _complete(self, sequence: Sequence, join: Callable[[Sequence], None]) -> None:
        """Let a sequence join the rows, as its prompt is complete."""
        if self._checkpoints.wants_end(sequence):
            self._kept.start_keeping(sequence, sequence.prefill.num_computed)
        join(sequence)
        # Only now: if the engine dies meanwhile, the sequence must still be found.
        self.prefilling.remove(sequence)

    def left_s(self) -> float:
        """Return an upper estimate of the seconds that all prompts still take if no row decodes meanwhile."""
        return sum(map(self._left_s, self.prefilling))

    def _left_s(self, sequence: Sequence) -> float:
        prefill = sequence.prefill
        left_s = self._seconds(sequence, self._costs_of(sequence, 0), sequence.num_to_prefill)
        looks = prefill.looking.left(prefill.num_computed) if prefill.looking else ()
        return left_s + sum(self._tower_costs[False, kind].seconds(units, 0) for kind, units in looks)

    def _plan(self, num_rows: int) -> list[int]:
        """Return how many tokens of each prompt this step feeds."""
        most = [s.prefill.max_chunk_tokens for s in self.prefilling]
        costs: list[Seconds] = [
            partial(self._seconds, s, self._costs_of(s, num_rows)) for s in self.prefilling
        ]
        remaining = [s.num_to_prefill for s in self.prefilling]
        for at, sequence in enumerate(self.prefilling):
            if looking := sequence.prefill.looking:
                looking.look_at(num_computed := sequence.prefill.num_computed)
                most[at] = min(most[at], looking.end_of(num_computed, num_computed + most[at]) - num_computed)
                if looking.num_left:
                    # The tower's units of work are its tokens until it has seen the image.
                    remaining[at] = most[at] = looking.num_left
                    costs[at] = self._work_s(looking, num_rows)
        limits = PrefillLimits.of_step(num_rows, self._settings.max_stall_ms, sum(most), self.device.plain_s)
        chunks = plan_prefill(remaining, costs, limits, most, self._num_passed)
        self._num_passed = 0 if chunks[0] else self._num_passed + 1
        return chunks

    def _costs_of(self, sequence: Sequence, num_rows: int) -> PrefillCosts:
        """Return the costs of a sequence's chunks. Log probabilities need logits, which others do not."""
        return self._costs[num_rows > 0, sequence.needs_prompt_logprobs]

    def _work_s(self, looking: Looking, num_rows: int) -> Callable[[int], float]:
        """Return an upper estimate of the seconds that the next units of the tower's work take."""
        seconds = cache(lambda kind, units: self._tower_costs[num_rows > 0, kind].seconds(units, 0))

        def work_s(num_units: int) -> float:
            total = 0.0
            for kind, units in looking.stages_left:
                if num_units <= 0:
                    break
                total += seconds(kind, min(units, num_units))
                num_units -= units
            return total

        return work_s

    def _max_cuts(self, sequence: Sequence) -> int:
        """Return how often a prompt may be cut, each for about a forward pass of one token."""
        num_left, plain_s = sequence.num_to_prefill, self.device.plain_s
        if not plain_s:
            return num_left // MIN_CUT_TOKENS
        return int(MAX_CUT_SHARE * self._seconds(sequence, self._costs_of(sequence, 0), num_left) / plain_s)

    def _seconds(self, sequence: Sequence, costs: PrefillCosts, num_tokens: int) -> float:
        """Return an upper estimate of the seconds that the next num_tokens of a prompt take."""
        num_left = len(sequence.tokens) - 1 - sequence.prefill.num_computed
        if not (num_fed := min(num_tokens, num_left)):
            return 0.0
        # Long chunks do not tell how much of their time is the forward pass itself. A plain step does.
        plain_s = self.device.plain_s
        return max(plain_s, costs.seconds(num_fed, sequence.prefill.num_computed, plain_s))

    def _look(self, sequence: Sequence, looking: Looking, num_units: int, num_rows: int) -> None:
        """Let the tower do the next units of its work on the image that a prompt has come to."""
        drafts = sequence.drafts

        def done(kind: str, units: int, seconds: float | None) -> None:
            self.num_done += 1
            self._tower_costs[num_rows > 0, kind].observe(units, 0, seconds)
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
        """Feed the next tokens of a prompt, in parts if state is to be kept of a length between them."""
        prefill = sequence.prefill
        if sequence.needs_prompt_logprobs:
            chunk = min(chunk, PROMPT_LOGPROBS_CHUNK)
        end = min(prefill.num_computed + chunk, len(sequence.tokens) - 1)
        if prefill.looking:
            end = prefill.looking.end_of(prefill.num_computed, end)
        within = (length for length in prefill.kept_lengths if prefill.num_computed < length < end)
        cuts = [] if self._kept.can_look_back else sorted(within)
        if cuts and end < len(sequence.tokens) - 1 and cuts[-1] >= end - (1 - SNAP_SHARE) * chunk:
            end = cuts.pop()
        for stop in (*cuts, end):
            if stop > prefill.num_computed and not sequence.ended:
                self._feed_part(sequence, stop, costs)

    def _feed_part(self, sequence: Sequence, stop: int, costs: PrefillCosts) -> None:
        """Feed the tokens of a prompt up to a length, then keep the state of the lengths that are wanted."""
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
                self._kept.start_keeping(sequence, length)

    def finish_keeping(self) -> None:
        """Put the state that chunks have passed into the prefix cache, once they are computed."""
        if self._kept.is_keeping:
            self.device.settle()
            self._kept.finish_keeping()

    def _forward(self, sequence: Sequence, stop: int) -> tuple[mx.array, list[mx.array]]:
        """Feed the tokens up to a length; return their logits, and their states if a head is to read them."""
        caches, start = sequence.prefill.caches, sequence.prefill.num_computed
        if looking := sequence.prefill.looking:
            return looking.feed(sequence.tokens, start, stop, caches), []
        tokens = mx.array(sequence.tokens[start:stop])[None]
        if self._taps is None or not (sequence.drafts and sequence.drafts.uses_model):
            return self._model(tokens, cache=caches), []
        with self._taps.tapping() as tapped:
            logits = self._model(tokens, cache=caches)
        states = [each[0] for each in tapped.states()]
        for each in states:
            sequence.prefill.states.add(each)
        return logits, states

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        """Handle a chunk whose computation failed. Raises StepError if its sequence has joined the rows."""
        self._kept.drop_copies()
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
