"""Compile a grammar in a process that can be killed, before it is compiled here.

llguidance limits what it does, but not all of it: multiples of a large number or many patterns at once take
it minutes, and a call cannot be interrupted.
"""

import json
from pathlib import Path

from engine.foreign.child_process import ChildError, ChildProcess, Limits

TRIAL_LIMITS = Limits(cpu_s=0.5, wall_s=10.0, memory_bytes=512 * 2**20)
"""Limits for one grammar. The largest of usual kinds takes a tenth of that time."""


class TrialError(Exception):
    """A grammar takes too much time or memory to compile."""


class GrammarTrials:
    """A process that compiles grammars. Safe on any thread. It starts with the first grammar."""

    def __init__(self, limits: Limits = TRIAL_LIMITS) -> None:
        # The library is imported as usual, so its folder is not needed.
        self._process = ChildProcess("grammars", Path(), limits)

    def start(self) -> None:
        """Start the process if it is not running; return without waiting for it."""
        self._process.start()

    def check(self, text: str, limits: dict[str, int]) -> None:
        """Compile a grammar as a trial of its time and memory. Other faults are not reported. Blocks.

        text: in llguidance's own format. limits: the arguments of LLParserLimits.
        Raises TrialError.
        """
        try:
            self._process.call(json.dumps({"text": text, "limits": limits}).encode())
        except ChildError as fault:
            raise TrialError(str(fault)) from None


TRIALS = GrammarTrials()
