"""How long a thread waits for others, measured by one that wants to run every half a millisecond."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TICK_S = 0.0005


@contextmanager
def measured_waits() -> Iterator[list[float]]:
    """Yield the seconds of each wait, as they come. Clear them to begin anew."""
    waits: list[float] = []
    is_done = threading.Event()

    def tick() -> None:
        while not is_done.is_set():
            start_s, spent_s = time.perf_counter(), time.process_time()
            time.sleep(TICK_S)
            late_s = time.perf_counter() - start_s - TICK_S
            # What this process did not do meanwhile, the machine's other processes did.
            waits.append(min(late_s, time.process_time() - spent_s))

    threading.Thread(target=tick, daemon=True).start()
    try:
        yield waits
    finally:
        is_done.set()
