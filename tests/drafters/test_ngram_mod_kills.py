"""A process that is killed while it saves the table loses nothing of what it had saved before."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from config.whole_file import UNFINISHED_S, unfinished_path
from drafters.ngram_mod_tables import NgramModTables

NUM_KILLS = 8
SAVING = """
import sys
from pathlib import Path
from drafters.ngram_mod_tables import NgramModTables
memory = NgramModTables("v", n=2, size=1 << 18, file=Path(sys.argv[1]))
if memory.file.exists():
    memory.load()
table = memory.table("")
for start in range(memory.status()["occupied"], 10**9, 1000):
    table.learn(range(start, start + 1002))
    memory.save()
    print(memory.status()["occupied"], flush=True)
"""


def test_a_kill_while_saving_leaves_the_last_table_that_was_saved(tmp_path: Path) -> None:
    file = tmp_path / "ngrams"
    for number in range(NUM_KILLS):
        saving = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(file)], stdout=subprocess.PIPE, text=True
        )
        assert saving.stdout is not None
        saved = 0
        # The next save has begun, and has got so far as the machine allows.
        for _ in range(1 + number):
            saved = int(saving.stdout.readline())
        saving.send_signal(signal.SIGKILL)
        rest = saving.stdout.read().split()
        assert saving.wait() == -signal.SIGKILL
        saved = int(rest[-1]) if rest else saved
        memory = NgramModTables("v", n=2, size=1 << 18, file=file)
        memory.load()
        assert memory.status()["occupied"] >= saved > 0
    _grow_old(tmp_path)
    memory.load()
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_kill_left_goes_with_the_next_table_that_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "ngrams"
    unfinished_path(file).write_bytes(b"half a table")
    at_work = unfinished_path(file)
    _grow_old(tmp_path)
    at_work.write_bytes(b"another process's")
    NgramModTables("v", n=2, size=1 << 18, file=file).save()
    assert set(tmp_path.iterdir()) == {file, at_work}


def _grow_old(folder: Path) -> None:
    then = time.time() - UNFINISHED_S - 60
    for path in folder.iterdir():
        os.utime(path, (then, then))
