"""How long the event loops of servers that tests start worked in one piece, as their logs say."""

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.machine import allowed_s

HOLDS = Path(os.environ.setdefault("TESTS_LOOP_HOLDS", tempfile.mkstemp(prefix="reprise-tests-holds-")[1]))
"""For all processes of a run: a line for each server."""
_HELD = re.compile(r"the event loop was held for \d+ ms in the span \w+ \((\d+) ms of the processor\)")
MOST_S = 0.1
"""Processor seconds for which a server's own work may hold its loop, on the usual machine."""
_ADDRESS = re.compile(r"address\W+http")


def note_holds(printed: Iterable[str]) -> None:
    """Note a server for the summary; a test fails if its own work held it: others have to wait for that.

    How long is long, allowed_s() says: the server's log names each hold of 100 ms, however slow the machine.
    printed: what it has logged. If it has no address it was no server, or had none yet.
    """
    text = "".join(printed)
    held = [int(own_ms) for own_ms in _HELD.findall(text)]
    if _ADDRESS.search(text):
        with HOLDS.open("a") as file:
            file.write(f"{max(held, default=0)}\n")
    if held:
        assert max(held) < 1000 * allowed_s(MOST_S), "\n".join(match[0] for match in _HELD.finditer(text))


def summary() -> str:
    """Say how many servers there were, and how long they were held; empty if there were none."""
    found = list(map(int, HOLDS.read_text().split())) if HOLDS.exists() else []
    held = f"{max(found)} ms at most" if any(found) else "never for over 100 ms"
    return f"event loops of {len(found)} servers, held by their own work: {held}" if found else ""
