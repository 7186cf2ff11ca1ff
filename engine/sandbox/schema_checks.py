"""Check JSON against its whole schema; a grammar made of a schema that is not strict may enforce less.

A schema comes from a client: its patterns and references may take forever. So it is checked in a process that
can be killed.
"""

import json
from pathlib import Path

from reprise.engine.sandbox.child_process import ChildError, ChildProcess, Limits

CHECK_LIMITS = Limits(cpu_s=0.5, wall_s=5.0, memory_bytes=512 * 2**20)


class SchemaChecker:
    """Checks JSON in a process, which starts with the first check. Safe on any thread."""

    def __init__(self, limits: Limits = CHECK_LIMITS) -> None:
        # The library is imported as usual, so its folder is not needed.
        self._process = ChildProcess("schemas", Path(), limits)

    def is_valid(self, text: str, schema: str) -> bool | None:
        """Return whether a text is JSON that satisfies a schema; None if the check failed. Blocks."""
        try:
            reply = self._process.call(json.dumps({"text": text, "schema": schema}).encode())
        except ChildError:
            return None
        valid: bool | None = reply["valid"]
        return valid


CHECKER = SchemaChecker()
