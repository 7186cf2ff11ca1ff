"""The worker: one step after another, on the thread that owns MLX.

    retire -> admit -> make room -> plan -> run the step (step.py) -> prefill -> drafters' work -> draft model

At the end of a step comes a slice of draft prefill, if one is due and budgets allow it. While no prompt is
prefilled, no prefix is kept and there is no draft prefill, fetching a step is the only wait.
"""

import logging
import time
from collections.abc import Callable, Iterable

import mlx.core as mx

from reprise.engine.batch.batch import Batch, EngineStats
from reprise.engine.batch.sequence import Sequence, StepError
from reprise.engine.generating.step import Decoder
from reprise.engine.interface.events import Failed
from reprise.engine.interface.spans import span
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.scheduler.draft_prefiller import DraftPrefiller
from reprise.engine.scheduler.read_ahead import ReadAhead
from reprise.engine.scheduler.request_queue import Prefiller, RequestQueue
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import Proposers

log = logging.getLogger("reprise.engine")

MAX_TOGETHER_S, MAX_TOGETHER_STEPS = 2.0, 64
"""Seconds, or plain steps if these take longer, for which a complete prompt may wait for others that arrived
with it. On a slow machine both the prompts and what is gained by decoding them together take longer."""

CLEAR_EVERY_STEPS = 256
"""Number of steps after which MLX's cache of free buffers is cleared."""


MAX_EXPONENT = 6
"""A test takes 4 ** n tokens; n is the largest number of earlier bisections of any suspect, up to this."""


class Recovery:
    """Restarts rows after a failed step, and bisects the suspects to find the one request at fault.

    Half of the candidates are tested: only they run until each has ended or committed enough tokens. Requests
    from earlier bisections are tested for longer. So if only all rows together fail, as when memory runs out,
    the requests finish during the tests instead of gaining one token each.
    """

    def __init__(self, batch: Batch, queue: RequestQueue, stats: EngineStats) -> None:
        self._batch = batch
        self._queue = queue
        self._stats = stats
        self._num_tokens = 0
        self._candidates: list[Sequence] = []
        # The number of answered tokens at which each tested sequence has passed.
        self._goals: dict[Sequence, int] = {}

    def restart(self, failed: StepError) -> None:
        """Put every row back into the queue after a failed step, and deal with the suspects.

        A single suspect is at fault and ends; several suspects are bisected; without any, all rows restart.
        A restart costs a prefill and changes no token, as a token's noise depends on its position.
        """
        members, suspects = self._batch.members, failed.suspects
        self._stats.num_failed_steps += 1
        self._batch.clear()
        if len(suspects) == 1:
            suspects[0].fail_with(failed.fault)
            self._test([])
        elif suspects:
            message = "a step with %d requests failed (%s); testing half of them"
            log.warning(message, len(suspects), failed.fault)
            members = members + self._take_prefilling()
            if self._candidates:
                self._test(s for s in list(self._goals) if s in suspects)
            else:
                self._bisect([s for s in suspects if not s.ended])
        self._queue.put_back(members)

    def advance(self) -> None:
        """Test the other candidates once those being tested have passed.

        All rows go back into the queue first; they lose time but no tokens.
        """
        goals = self._goals
        if not self._candidates or not all(s.ended or s.num_answered >= goals[s] for s in goals):
            return
        self._test(s for s in self._candidates if s not in goals)
        if not self._candidates:
            log.warning("every request of the failed step passed in a smaller batch; none is at fault")
            return
        members = self._batch.members
        for row, sequence in enumerate(members):
            self._queue.prefixes.keep_row(sequence, row, self._batch.rows)
        self._batch.clear()
        self._queue.put_back(members + self._take_prefilling())

    def _bisect(self, suspects: list[Sequence]) -> None:
        self._num_tokens = 4 ** min(MAX_EXPONENT, max((s.num_bisections for s in suspects), default=0))
        for sequence in suspects:
            sequence.num_bisections += 1
        self._test(suspects)

    def _test(self, candidates: Iterable[Sequence]) -> None:
        """Let the queue admit only half of the candidates; all sequences if there is none."""
        self._candidates = [s for s in candidates if not s.ended]
        tested = self._candidates[: (len(self._candidates) + 1) // 2]
        self._goals = {s: s.num_answered + self._num_tokens for s in tested}
        self._queue.only = tested or None

    def _take_prefilling(self) -> list[Sequence]:
        taken, self._queue.prefiller.prefilling = self._queue.prefiller.prefilling, []
        return taken


class Worker:
    """All sequences in the engine, and the steps that advance them. Used by one thread only.

    batch: the sequences that decode. queue: the sequences that wait; queue.prefiller has those that prefill.
    device: computes the worker's steps and prompts. read_ahead: prompts that are expected next.
    """

    def __init__(
        self,
        batch: Batch,
        queue: RequestQueue,
        planner: Planner,
        proposers: Proposers,
        draft_prefiller: DraftPrefiller | None = None,
    ) -> None:
        self.batch = batch
        self.queue = queue
        self.planner = planner
        self.proposers = proposers
        self.draft_prefiller = draft_prefiller
        self.stats = EngineStats()
        self.read_ahead = ReadAhead(
            queue.prefixes, queue.prefiller, draft_prefiller, queue.memory_budget, self.stats
        )
        self.device = batch.device
        self._decoder = Decoder(batch, planner, self.stats)
        self._recovery = Recovery(batch, queue, self.stats)
        self._num_steps = 0

    @property
    def num_progressed(self) -> int:
        """A count that grows with rows' steps, prompts' chunks and towers' slices; any thread may read it."""
        return self._decoder.num_commits + self.queue.prefiller.num_done

    @property
    def members(self) -> list[Sequence]:
        """The sequences that decode, in the order of their rows."""
        return self.batch.members

    @property
    def rows(self) -> Rows:
        """The target model's rows."""
        return self.batch.rows

    @property
    def prefilling(self) -> list[Sequence]:
        """The sequences whose prompts are being computed."""
        return self.queue.prefiller.prefilling

    @property
    def running(self) -> list[Sequence]:
        """The sequences that decode and those that prefill."""
        return [*self.members, *self.prefilling]

    @property
    def live(self) -> list[Sequence]:
        """Every sequence that has not had its terminal event."""
        return [s for s in (*self.running, *self.queue.waiting) if not s.ended]

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.members or self.prefilling or self.queue.waiting) or self.proposers.work.is_left

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for admission."""
        self.queue.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence wherever it is; the next step frees its row."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                if sequence in self.prefilling:
                    self.queue.prefixes.keep_cancelled(sequence)
                    self.device.reset()
                sequence.fail(Failed("cancelled", "the client left"))

    def end_waiting(self, failed: Failed) -> None:
        """End all sequences that wait for a row."""
        for sequence in self.queue.waiting:
            sequence.fail(failed)

    @property
    def is_blocked(self) -> bool:
        """Whether a step would do nothing, as all sequences wait for memory that other models hold."""
        return bool(self.queue.waiting) and not self.running and not self.proposers.work.is_left

    def step(self) -> None:
        """Advance every sequence by one step. An error in it ends at most the request that caused it."""
        self._guard(self._advance)

    def pause(self) -> None:
        """Wait for all work in flight: another model gets the device. Handles errors as step() does."""
        self._guard(self.device.pause)

    def read_next(self) -> bool:
        """Compute a chunk of an expected prompt; return whether more may be left. No step may be due."""
        return self.read_ahead.advance(self.batch.rows_by_model)

    def stop_reading(self) -> None:
        """Keep what was read ahead, and free the caches of what was being read."""
        self.read_ahead.stop(self.batch.rows_by_model)

    def retire(self) -> None:
        """Keep the prefixes of sequences that ended since the last step, and free their rows."""
        self._guard(self._retire)

    def suspend(self) -> list[Sequence]:
        """Hand the waiting sequences over to this worker's successor. No sequence may be running."""
        waiting = self.live
        for sequence in waiting:
            sequence.suspend()
        self.queue.waiting.clear()
        return waiting

    def _guard(self, action: Callable[[], None]) -> None:
        """Do a part of the work; if it fails, end the request at fault and restart the others."""
        try:
            action()
        # Whatever raised this, the device's state cannot be trusted any more.
        except Exception as fault:
            self.queue.prefixes.drop_copies()
            # Not bound to a name: that would make a cycle, which keeps the failed step's arrays alive.
            self._recovery.restart(_step_error(fault, self.running or list(self.queue.waiting)[:1]))
            self.device.reset()
        if not self.has_work:
            # A chunk in flight would keep the last sequence alive.
            self.device.clear()

    def _advance(self) -> None:
        self._retire()
        self._recovery.advance()
        if self.queue.waiting:
            num_before = len(self.prefilling)
            self.queue.admit(self.members, self.rows)
            for sequence in self.prefilling[num_before:]:
                self.read_ahead.note_admitted(sequence)
        if self.prefilling:
            self._open_drafters()
        self._make_room()
        if _awaits_prompts(self.batch, self.queue.prefiller):
            self.batch.start_copies()
            self._prefill(0)
            self.proposers.work.advance(self.device.plain_s)
            return
        inputs = self._decoder.plan()
        if inputs and self.device.step:
            # The plan was made without the token in flight: fetch it and plan again.
            self._fetch_in_flight()
            inputs = self._decoder.plan()
        if inputs:
            self._decoder.verify(inputs)
        else:
            self._decoder.decode()
        self._prefill(len(self.batch.members))
        # Now the device is busy with the dispatched work.
        self.proposers.work.advance(self.device.plain_s)
        if self.draft_prefiller:
            self._prefill_drafts(self.draft_prefiller)
        self._num_steps += 1
        if self._num_steps % CLEAR_EVERY_STEPS == 0:
            mx.clear_cache()

    @span("memory")
    def _make_room(self) -> None:
        """End draft prefill, then preempt the youngest sequences, until the next step fits into memory."""
        budget, drafting, batch = self.queue.memory_budget, self.draft_prefiller, self.batch
        while not budget.make_room(
            batch.members,
            self.prefilling,
            batch.rows_by_model,
            drafting.begun(batch.members) if drafting else (),
        ):
            if drafting and drafting.stop(batch.members):
                continue
            # Alone it fits, unless other models hold the memory; then it waits.
            if len(self.running) < (1 if budget.shared else 2):
                return
            if self.device.step:
                # Its tokens are valid, and may end sequences.
                self._fetch_in_flight()
            else:
                self._preempt(max(self.running, key=lambda s: s.timing.submitted_at))

    def _preempt(self, sequence: Sequence) -> None:
        """Put a running sequence back into the queue; it restarts once there is memory for it."""
        log.info("request %s is preempted and restarts when memory allows", sequence.request.id)
        self.stats.num_preemptions += 1
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
        else:
            self.batch.free([self.members.index(sequence)])
        self.queue.put_back([sequence])

    @span("drafters")
    def _open_drafters(self) -> None:
        """Open the drafters of sequences that were just admitted: they index the prompt while it prefills."""
        for sequence in self.prefilling:
            if sequence.drafts is None and not sequence.ended:
                try:
                    sequence.drafts = self.proposers.begin(sequence.request, sequence.matcher)
                    if self.draft_prefiller:
                        self.draft_prefiller.choose(sequence)
                except Exception as fault:
                    sequence.fail_with(fault)

    @span("retiring")
    def _retire(self) -> None:
        """Free the rows of sequences that ended, after keeping their prefixes if memory allows."""
        self.queue.drop_ended()
        ended = [row for row, sequence in enumerate(self.batch.members) if sequence.ended]
        for row in ended:
            sequence = self.members[row]
            if self.queue.prefixes.keep_row(sequence, row, self.rows):
                # It waited for its copy, and so for all earlier work.
                self.device.reset()
            if self.draft_prefiller:
                self.draft_prefiller.keep_row(sequence, row)
        if ended:
            self.batch.free(ended)

    def _fetch_in_flight(self) -> None:
        """Fetch the step in flight, and free the rows of sequences that it ended."""
        if step := self.device.take_step():
            # It may be computed already: MLX's CPU build holds up the dispatch of a step until it nearly is.
            step.is_steady = False
            self._decoder.fetch(step)
            self._retire()

    @span("prefill")
    def _prefill(self, num_rows: int) -> None:
        """Feed prompts within this step's budget; sequences whose prompts are complete join the rows.

        num_rows: rows that decode meanwhile.
        """
        # The step is computed, and the device is busy with the chunk: fetching later gains nothing.
        if self.queue.prefiller.run(num_rows, self._join) and (step := self.device.take_step()):
            self._decoder.fetch(step)

    @span("draft_model")
    def _prefill_drafts(self, prefiller: DraftPrefiller) -> None:
        """Compute a slice of draft prefill, if this step leaves room for it."""
        if self.prefilling or not prefiller.is_due(self.members):
            return
        # The slice is timed, so nothing else may run on the device.
        self.device.settle()
        self._fetch_in_flight()
        prefiller.run(self.members)
        # The next step is not dispatched ahead, which is a cost of drafting too.
        self.device.restart()
        self._decoder.has_drafted = True

    def _join(self, sequence: Sequence) -> None:
        """Make a prefilled sequence the last row; the next step feeds its last token."""
        sequence.make_row_sampling(self.batch.vocab_size)
        try:
            draft_prefill = self.draft_prefiller.begin(sequence) if self.draft_prefiller else None
            self.batch.join(sequence, draft_prefill)
        except Exception as fault:
            raise StepError([sequence], fault) from fault
        sequence.timing.joined_at = sequence.timing.joined_at or time.perf_counter()


def _step_error(fault: Exception, suspects: list[Sequence]) -> StepError:
    """Return the exception with its suspects. Raises it if there are none."""
    if isinstance(fault, StepError):
        return fault
    if not suspects:
        raise fault
    return StepError(suspects, fault)


def _awaits_prompts(batch: Batch, prefiller: Prefiller) -> bool:
    """Whether the rows should wait for prompts that arrived with theirs, to be decoded together.

    A step of a few rows costs nearly as much as one of all, and would delay the other prompts. Rows wait
    only before they all have their first token, for at most MAX_TOGETHER_S or MAX_TOGETHER_STEPS, and not
    for a prompt that lacks more tokens than the longest of them has.
    """
    if not batch.members or not prefiller.prefilling or batch.device.step:
        return False
    if any(s.timing.first_token_at for s in batch.members):
        return False
    longest = max(len(s.tokens) for s in batch.members)
    if any(s.num_to_prefill > longest for s in prefiller.prefilling):
        return False
    waited_s = time.perf_counter() - min(s.timing.joined_at for s in batch.members)
    steps_s = MAX_TOGETHER_STEPS * batch.device.plain_s
    return waited_s + prefiller.planner.left_s(prefiller.prefilling) <= max(MAX_TOGETHER_S, steps_s)
