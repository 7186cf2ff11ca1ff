"""The real server, as a person starts it, on the bundled model."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.holds import note_holds

STARTED_WITHIN_S, LAST_LINES_WITHIN_S = 240, 60
RECORDED = "recorded.jsonl"
FROM_CHECKOUT = (sys.executable, "-c", "import sys; from reprise.cli.main import main; sys.exit(main())")


def with_constant(name: str, value: float) -> tuple[str, ...]:
    """FROM_CHECKOUT, where a module's constant has another value. name: with that of its module."""
    module, _, constant = name.rpartition(".")
    first = f"import {module} as module; module.{constant} = {value}; "
    return (*FROM_CHECKOUT[:-1], first + FROM_CHECKOUT[-1])


CONTEXT_TOKENS = 8192
"""Less than the bundled model takes, so that an answer without an end does not run for minutes."""


@contextlib.contextmanager
def serving(
    folder: Path, *flags: str, command: Sequence[str] = FROM_CHECKOUT
) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that has to exit with 0, and what it has printed so far, line by line.

    folder: takes what the server keeps, so that nothing is written where the person's own things are.
    """
    with started(folder, *flags, command=command) as (address, printed, process):
        yield address, printed
        process.terminate()
        assert process.wait(STARTED_WITHIN_S) == 0, "".join(printed)


@contextlib.contextmanager
def started(
    folder: Path,
    *flags: str,
    command: Sequence[str] = FROM_CHECKOUT,
    cwd: Path | None = None,
) -> Iterator[tuple[str, list[str], "subprocess.Popen[str]"]]:
    """As serving(), but the process is there to be ended; if that is not done, it is killed."""
    # Variables of the person who runs the tests must not change what is tested.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REPRISE_")}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    environment["REPRISE_NGRAM_TABLE_FILE"] = str(folder / "ngrams")
    environment["REPRISE_PREFIX_CACHE_DIR"] = "none"
    limit = ("--max-context-tokens", str(CONTEXT_TOKENS))
    process = subprocess.Popen(
        [*command, "serve", "--port", "0", "--served-model-name", "demo", *limit, *flags],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=cwd,
    )
    printed: list[str] = []
    is_known = threading.Event()

    def read() -> None:
        for line in process.stderr:
            printed.append(line)
            if re.search(r"address\W+http", line):
                is_known.set()
        is_known.set()

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        assert is_known.wait(STARTED_WITHIN_S), "".join(printed)
        match = re.search(r"address\W+(http://[^\s\"]+)", "".join(printed))
        assert match, "".join(printed)
        yield match[1], printed, process
    finally:
        process.kill()
        process.wait()
    reading.join(LAST_LINES_WITHIN_S)
    note_holds(printed)


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps what steps were learned to cost, and the n-gram table."""
    return tmp_path_factory.mktemp("reprise")


@pytest.fixture(scope="session")
def server_url(server_folder: Path) -> Iterator[str]:
    """The address of a server that is stopped, and must exit with 0, after the last test."""
    with serving(server_folder, "--record", str(server_folder / RECORDED)) as (address, _):
        yield address
