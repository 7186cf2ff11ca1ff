"""Start the processes of a model on several machines, all on this one, over a real ring."""

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.holds import note_holds

PUT_OFF, TRIED = "the rest is tried while nothing is asked", "all that it can do is tried"
STARTED_WITHIN_S = 240
COMMAND = [sys.executable, "-c", "import sys; from reprise.cli.main import main; sys.exit(main())"]
REPRISE = [str(Path(sys.executable).parent / "reprise")]


@dataclass
class Started:
    """The processes of a server, rank 0 first, and what each has printed so far."""

    processes: list["subprocess.Popen[str]"]
    printed: list[list[str]] = field(default_factory=list)
    address: str = ""

    def statuses(self, within_s: float) -> list[int]:
        """Wait for all to end; return their exit statuses."""
        deadline = time.monotonic() + within_s
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    def said(self, rank: int) -> str:
        """Return what a rank has printed."""
        return "".join(self.printed[rank])

    def wait_until_said(self, rank: int, words: str) -> None:
        """Wait until a rank has printed something. Fails if a process ends before it."""
        deadline = time.monotonic() + STARTED_WITHIN_S
        while words not in self.said(rank):
            assert time.monotonic() < deadline, self.said(rank)
            assert self.processes[rank].poll() is None, self.said(rank)
            time.sleep(0.05)

    def wait_until_ready(self) -> None:
        """Wait for the banner, and for trials that a slow start put off. Fails if a process ends before."""
        deadline = time.monotonic() + STARTED_WITHIN_S
        while time.monotonic() < deadline:
            said = self.said(0)
            found = re.search(r"address\W+(http://[^\s\"]+)", said)
            if found and (PUT_OFF not in said or TRIED in said):
                self.address = found[1]
                return
            assert all(one.poll() is None for one in self.processes), "\n".join(map("".join, self.printed))
            time.sleep(0.05)
        raise AssertionError("\n".join(map("".join, self.printed)))


def free_ports(count: int) -> list[int]:
    """Return ports in a row that are free now, with a free one after them: rank 0 listens there.

    They are below those that systems give to whoever asks for any.
    """
    while True:
        ports = range(first := random.SystemRandom().randrange(16_000, 32_000), first + count + 1)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return list(ports[:-1])


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of Reprise."""
    return {name: value for name, value in os.environ.items() if not name.startswith("REPRISE_")}


def places(folder: Path, num_ranks: int) -> list[dict[str, str]]:
    """Write a host file; return what mlx.launch adds to each rank's environment: nothing for one rank."""
    if num_ranks == 1:
        return [{}]
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(num_ranks)]))
    return [{"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)} for rank in range(num_ranks)]


@contextlib.contextmanager
def ranks(
    folder: Path,
    model: Path,
    num_ranks: int,
    *flags: str,
    flags_by_rank: Sequence[Sequence[str]] = (),
    program: Sequence[str] = COMMAND,
) -> Iterator[Started]:
    """Start the ranks of a model, as mlx.launch does; whatever still runs at the end is killed.

    num_ranks: 1 for a server without other machines. flags_by_rank: more flags of each rank.
    program: what is started.
    """
    environment = clean_environment()
    environment["REPRISE_NGRAM_TABLE_FILE"] = str(folder / f"ngrams-{num_ranks}")
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    processes = []
    for rank, place in enumerate(places(folder, num_ranks)):
        more = flags_by_rank[rank] if flags_by_rank else ()
        processes.append(
            subprocess.Popen(
                [*program, "serve", "--model", str(model), "--port", "0", *flags, *more],
                stderr=subprocess.PIPE,
                text=True,
                env=environment | place,
            )
        )
    started = Started(processes)
    for process in processes:
        lines: list[str] = []
        started.printed.append(lines)
        threading.Thread(target=lambda p=process, to=lines: to.extend(p.stderr), daemon=True).start()
    try:
        yield started
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for lines in started.printed:
        note_holds(lines)
