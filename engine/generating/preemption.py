"""Free memory for the next step: put running sequences back into the queue, the youngest first."""

import logging
from collections.abc import Callable

from reprise.engine.batch.batch import Batch
from reprise.engine.batch.sequence import Sequence
from reprise.engine.batch.stats import EngineStats
from reprise.engine.interface.stations import station
from reprise.engine.scheduler.draft_prefiller import DraftPrefiller
from reprise.engine.scheduler.request_queue import RequestQueue

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

    @station("memory")
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
