"""What is done about a step that failed: who caused it is looked for and ended, all others begin again."""

import logging

from engine.batch import Batch
from engine.faults.bisection import Bisection
from engine.request import Failed
from engine.scheduler.prefix_lookup import PrefixLookup
from engine.scheduler.request_queue import RequestQueue
from engine.sequence import Sequence
from engine.stats import EngineStats

log = logging.getLogger("reprise.engine")


class Recovery:
    """The inquest that goes on, if there is one, and how rows begin again for it."""

    def __init__(
        self, batch: Batch, request_queue: RequestQueue, prefix_lookup: PrefixLookup, stats: EngineStats
    ) -> None:
        self._batch = batch
        self._request_queue = request_queue
        self._prefix_lookup = prefix_lookup
        self._stats = stats
        self._bisection: Bisection | None = None

    def start_over(self, suspects: list[Sequence], fault: Exception) -> None:
        """A step over the suspects failed, and all rows with it. Whoever was alone in it is to blame.

        Of several the one to blame is looked for. Without suspects nobody is, and all rows just begin again.
        Beginning again costs a prefill and changes no token: noise is keyed by position.
        """
        rows = self._batch.members
        self._stats.num_failed_steps += 1
        self._batch.clear()
        if len(suspects) == 1:
            fail(suspects[0], fault)
            self._hold(None)
        elif suspects:
            log.warning("a step over %d rows failed (%s); trying half of them", len(suspects), fault)
            rows = rows + self._request_queue.prefilling
            self._request_queue.prefilling = []
            if self._bisection:
                self._bisection.narrow(suspects)
            self._hold(self._bisection or Bisection(suspects))
        self._request_queue.put_back(rows)

    def go_on(self) -> None:
        """Try the others once those on trial have passed: rows make place for them, and lose only time."""
        bisection = self._bisection
        if bisection is None or not bisection.has_passed:
            return
        bisection.acquit()
        self._hold(bisection)
        if bisection.is_over:
            log.warning("each of the rows of the failed step passes without the others; going on")
            return
        for row, sequence in enumerate(self._batch.members):
            self._prefix_lookup.keep_row(sequence, row, self._batch.rows)
        rows = self._batch.members + self._request_queue.prefilling
        self._batch.clear()
        self._request_queue.prefilling = []
        self._request_queue.put_back(rows)

    def _hold(self, bisection: Bisection | None) -> None:
        """Go on with an inquest, or with none."""
        self._bisection = None if bisection is None or bisection.is_over else bisection
        self._request_queue.only = self._bisection.trial if self._bisection else None


def fail(sequence: Sequence, fault: Exception) -> None:
    """End a sequence for what was raised on its account, unless it has ended."""
    if sequence.ended:
        return
    log.error("request %s failed", sequence.request.id, exc_info=fault)
    sequence.fail(Failed("request", f"generation failed: {fault}"))
