"""What is done about a step that failed: who caused it is looked for and ended, all others begin again."""

import logging

from engine.batch import Batch
from engine.faults.bisection import Inquest
from engine.request import Failed
from engine.scheduler.prefix_lookup import Beginnings
from engine.scheduler.request_queue import Intake
from engine.sequence import Sequence
from engine.stats import Tally

log = logging.getLogger("reprise.engine")


class Recovery:
    """The inquest that goes on, if there is one, and how rows begin again for it."""

    def __init__(self, batch: Batch, intake: Intake, beginnings: Beginnings, tally: Tally) -> None:
        self._batch = batch
        self._intake = intake
        self._beginnings = beginnings
        self._tally = tally
        self._inquest: Inquest | None = None

    def start_over(self, suspects: list[Sequence], fault: Exception) -> None:
        """A step over the suspects failed, and all rows with it. Whoever was alone in it is to blame.

        Of several the one to blame is looked for. Without suspects nobody is, and all rows just begin again.
        Beginning again costs a prefill and changes no token: noise is keyed by position.
        """
        rows = self._batch.members
        self._tally.num_failed_steps += 1
        self._batch.clear()
        if len(suspects) == 1:
            fail(suspects[0], fault)
            self._hold(None)
        elif suspects:
            log.warning("a step over %d rows failed (%s); trying half of them", len(suspects), fault)
            rows = rows + self._intake.prefilling
            self._intake.prefilling = []
            if self._inquest:
                self._inquest.narrow(suspects)
            self._hold(self._inquest or Inquest(suspects))
        self._intake.put_back(rows)

    def go_on(self) -> None:
        """Try the others once those on trial have passed: rows make place for them, and lose only time."""
        inquest = self._inquest
        if inquest is None or not inquest.has_passed:
            return
        inquest.acquit()
        self._hold(inquest)
        if inquest.is_over:
            log.warning("each of the rows of the failed step passes without the others; going on")
            return
        for row, sequence in enumerate(self._batch.members):
            self._beginnings.keep_row(sequence, row, self._batch.rows)
        rows = self._batch.members + self._intake.prefilling
        self._batch.clear()
        self._intake.prefilling = []
        self._intake.put_back(rows)

    def _hold(self, inquest: Inquest | None) -> None:
        """Go on with an inquest, or with none."""
        self._inquest = None if inquest is None or inquest.is_over else inquest
        self._intake.only = self._inquest.trial if self._inquest else None


def fail(sequence: Sequence, fault: Exception) -> None:
    """End a sequence for what was raised on its account, unless it has ended."""
    if sequence.ended:
        return
    log.error("request %s failed", sequence.request.id, exc_info=fault)
    sequence.fail(Failed("request", f"generation failed: {fault}"))
