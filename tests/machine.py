"""Limits of processor time in units of work, so that a slow or busy machine has more of it."""

import json
import time

USUAL_S = 0.01
"""What the reference work takes on the machine for which limits are written down."""
ROOM = 5
"""How many times a limit work may take: what shares a processor's caches and cores slows it down."""
_OBJECTS = [{"role": "user", "content": "a" * 80, "index": number} for number in range(1500)]


def allowed_s(limit_s: float) -> float:
    """Return the processor seconds that work may take on this machine, as it is now.

    limit_s: how many it may take on the usual machine.
    """
    return limit_s * ROOM * max(1, max(_reference_s() for _ in range(3)) / USUAL_S)


def _reference_s() -> float:
    """Return the processor seconds of a fixed piece of work: what servers do, in C and in Python."""
    start_s = time.thread_time()
    texts = [json.dumps(one) for one in _OBJECTS]
    parsed = [json.loads(text) for text in texts]
    counts: dict[str, int] = {}
    for one in parsed:
        for key in one:
            counts[key] = counts.get(key, 0) + len(key)
    return time.thread_time() - start_s
