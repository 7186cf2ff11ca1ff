"""The cost of a step beside a plain one, in words."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepPrice:
    """The believed cost of a verification step.

    num_rows, width: its shape. ratio: its seconds over those of a plain step of as many rows.
    is_seen: whether real steps had this shape. is_measured: whether its cost was measured while idle.
    measured_at: when it was measured, in seconds since the epoch; None if not known.
    """

    num_rows: int
    width: int
    ratio: float
    is_seen: bool = False
    is_measured: bool = False
    measured_at: float | None = None

    def describe(self, now: float | None = None) -> str:
        """Return the cost in words: "a step of 8 tokens costs 7.6 plain ones here (measured 3 minutes ago)".

        now: seconds since the epoch.
        """
        source = "a guess"
        if self.is_seen:
            source = "seen in real steps"
        elif self.is_measured:
            source = "measured" + (_ago(self.measured_at, now or time.time()) if self.measured_at else "")
        rows = f" for each of {self.num_rows} rows" if self.num_rows > 1 else ""
        return f"a step of {self.width} tokens{rows} costs {self.ratio:.1f} plain ones here ({source})"


def _ago(measured_at: float, now: float) -> str:
    passed_s = max(0.0, now - measured_at)
    for unit_s, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if passed_s >= unit_s:
            num = int(passed_s // unit_s)
            return f" {num} {name}{'s' if num > 1 else ''} ago"
    return " just now"
