"""Recover from a failed step: end the request at fault, and restart all others."""

import logging

from reprise.engine.batch.batch import Batch
from reprise.engine.batch.sequence import Sequence
from reprise.engine.batch.stats import EngineStats
from reprise.engine.batch.step_error import StepError
from reprise.engine.generating.bisection import Bisection
from reprise.engine.scheduler.request_queue import RequestQueue

log = logging.getLogger("reprise.engine")


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
