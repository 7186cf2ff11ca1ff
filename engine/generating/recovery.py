"""Recover from a failed step: find the request at fault, and make room by preemption."""

import logging
from collections.abc import Callable, Collection, Iterable

from reprise.engine.batch.batch import Batch, EngineStats
from reprise.engine.batch.sequence import Sequence, StepError
from reprise.engine.interface.spans import span
from reprise.engine.scheduler.draft_prefiller import DraftPrefiller
from reprise.engine.scheduler.request_queue import RequestQueue

MAX_EXPONENT = 6
"""A test takes 4 ** n tokens; n is the largest number of earlier bisections of any suspect, up to this."""


class Bisection:
    """The search for the one request among several whose steps fail.

    candidates: the sequences of a failed step; if a single request is at fault, it is among them.
    tested: half of the candidates. No other rows run until each tested one has ended or committed enough
        tokens.

    Requests that took part in earlier bisections are tested for longer. So if only all rows together fail, as
    when memory runs out, the requests finish during the tests instead of gaining one token each.
    """

    def __init__(self, suspects: Iterable[Sequence]) -> None:
        suspects = [s for s in suspects if not s.ended]
        self._num_tokens = 4 ** min(MAX_EXPONENT, max((s.num_bisections for s in suspects), default=0))
        for sequence in suspects:
            sequence.num_bisections += 1
        self._test(suspects)

    @property
    def is_over(self) -> bool:
        """Whether no candidate is left: no single request was at fault."""
        return not self.candidates

    @property
    def has_passed(self) -> bool:
        """Whether every tested sequence has ended or committed enough tokens."""
        return all(s.ended or s.num_answered >= goal for s, goal in self._goals.items())

    def narrow(self, suspects: Collection[Sequence]) -> None:
        """Search on among those tested sequences that another failed step suspects."""
        self._test([s for s in self.tested if s in suspects])

    def clear_tested(self) -> None:
        """Search on among the other candidates, as the tested ones have passed."""
        self._test([s for s in self.candidates if s not in self.tested])

    def _test(self, candidates: Iterable[Sequence]) -> None:
        self.candidates = [s for s in candidates if not s.ended]
        self.tested = self.candidates[: (len(self.candidates) + 1) // 2]
        self._goals = {s: s.num_answered + self._num_tokens for s in self.tested}


log = logging.getLogger("reprise.engine")


class Preemption:
    """Puts running sequences back into the queue while the next step does not fit into memory."""

    def __init__(
        self, batch: Batch, queue: RequestQueue, draft_prefiller: DraftPrefiller | None, stats: EngineStats
    ) -> None:
        self._batch = batch
        self._queue = queue
        self._draft_prefiller = draft_prefiller
        self._stats = stats

    @span("memory")
    def make_room(self, fetch_in_flight: Callable[[], None]) -> None:
        """End draft prefill, then preempt the youngest sequences, until the next step fits.

        fetch_in_flight: fetches the step in flight, and frees the rows of sequences that it ended.
        """
        budget, drafting, batch = self._queue.memory_budget, self._draft_prefiller, self._batch
        while not budget.make_room(
            batch.members,
            self._queue.prefiller.prefilling,
            batch.rows_by_model,
            drafting.begun(batch.members) if drafting else (),
        ):
            if drafting and drafting.stop(batch.members):
                continue
            running = [*batch.members, *self._queue.prefiller.prefilling]
            # Alone it fits, unless other models hold the memory: then it waits for it.
            if len(running) < (1 if budget.shared else 2):
                return
            if batch.device.step:
                # Its tokens are valid, and may end sequences.
                fetch_in_flight()
            else:
                self._preempt(max(running, key=lambda s: s.timing.submitted_at))

    def _preempt(self, sequence: Sequence) -> None:
        """Put a running sequence back into the queue; it restarts once there is memory for it."""
        log.info("request %s is preempted and restarts when memory allows", sequence.request.id)
        self._stats.num_preemptions += 1
        prefilling = self._queue.prefiller.prefilling
        if sequence in prefilling:
            prefilling.remove(sequence)
        else:
            self._batch.free([self._batch.members.index(sequence)])
        self._queue.put_back([sequence])


class Recovery:
    """Restarts rows after a failed step, and runs the bisection if several requests are suspected."""

    def __init__(self, batch: Batch, queue: RequestQueue, stats: EngineStats) -> None:
        self._batch = batch
        self._queue = queue
        self._stats = stats
        self._bisection: Bisection | None = None

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
            self._continue_with(None)
        elif suspects:
            message = "a step with %d requests failed (%s); testing half of them"
            log.warning(message, len(suspects), failed.fault)
            members = members + self._take_prefilling()
            if self._bisection:
                self._bisection.narrow(suspects)
            self._continue_with(self._bisection or Bisection(suspects))
        self._queue.put_back(members)

    def advance(self) -> None:
        """Test the other candidates once those being tested have passed.

        All rows go back into the queue first; they lose time but no tokens.
        """
        bisection = self._bisection
        if bisection is None or not bisection.has_passed:
            return
        bisection.clear_tested()
        self._continue_with(bisection)
        if bisection.is_over:
            log.warning("every request of the failed step passed in a smaller batch; none is at fault")
            return
        members = self._batch.members
        for row, sequence in enumerate(members):
            self._queue.prefix_lookup.kept.keep_row(sequence, row, self._batch.rows)
        self._batch.clear()
        self._queue.put_back(members + self._take_prefilling())

    def _take_prefilling(self) -> list[Sequence]:
        taken, self._queue.prefiller.prefilling = self._queue.prefiller.prefilling, []
        return taken

    def _continue_with(self, bisection: Bisection | None) -> None:
        """Set the bisection in progress, and let the queue admit only the sequences that it tests."""
        self._bisection = None if bisection is None or bisection.is_over else bisection
        self._queue.only = self._bisection.tested if self._bisection else None
