"""`python -m reprise.engine.distributed.launcher`: run mlx.launch such that it ends with who started it.

It also uses no CPU core while its processes run. mlx.launch itself polls them without a pause: it waits for
pipes that are readable or writable, and theirs are always writable.
"""

import os
import signal
import sys
from collections.abc import Sequence
from select import POLLHUP, poll, select
from unittest.mock import patch

from mlx._distributed_utils import launch

CTRL_C = b"\x03"
MAX_WAIT_S = 0.1
"""How late what is typed reaches the processes at most."""


def select_readable(
    readers: Sequence[int], writers: Sequence[int], others: Sequence[int], timeout_s: float
) -> tuple[list[int], list[int], list[int]]:
    """Wait until a file is readable, in place of select.select(), which would return for writable ones too.

    Calls stop_processes() if standard input has ended, as the command that wrote to it is then gone.
    """
    if (stdin := sys.stdin.fileno()) in readers and has_ended(stdin):
        stop_processes()
    readable, _, other = select(readers, [], others, min(timeout_s, MAX_WAIT_S))
    return readable, select([], writers, [], 0)[1], other


def has_ended(pipe: int) -> bool:
    """Return whether nobody can write to a pipe any more."""
    poller = poll()
    poller.register(pipe, 0)
    return any(event & POLLHUP for _, event in poller.poll(0))


def stop_processes() -> None:
    """Stop the processes here and on other machines, in place of reprise.cli.launch, which has ended."""
    # A standard input that does not end takes the place of the one that has ended.
    reader, writer = os.pipe()
    os.write(writer, CTRL_C)
    os.dup2(reader, sys.stdin.fileno())
    os.killpg(0, signal.SIGINT)


if __name__ == "__main__":
    sys.argv[0] = "mlx.launch"
    with patch.object(launch, "select", select_readable):
        launch.main()
