"""`python -m engine.distributed.launcher`: mlx.launch, which does not take a core while what it started runs.

It waits until it can read what the processes say or write to them, and it can always write.
"""

import sys
from collections.abc import Sequence
from select import select
from unittest.mock import patch

from mlx._distributed_utils import launch

MAX_WAIT_S = 0.1
"""How late what is typed reaches the processes at most."""


def select_readable(
    readers: Sequence[int], writers: Sequence[int], others: Sequence[int], timeout_s: float
) -> tuple[list[int], list[int], list[int]]:
    """Stand in for select.select(): wait until something can be read, whatever can be written."""
    readable, _, other = select(readers, [], others, min(timeout_s, MAX_WAIT_S))
    return readable, select([], writers, [], 0)[1], other


if __name__ == "__main__":
    sys.argv[0] = "mlx.launch"
    with patch.object(launch, "select", select_readable):
        launch.main()
