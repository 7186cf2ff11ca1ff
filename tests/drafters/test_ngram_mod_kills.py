"""A process that is killed while saving the tables keeps the last complete file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from reprise.config.atomic_files import UNFINISHED_S, unfinished_path
from reprise.drafters.ngram_mod.table import NgramModTables

NUM_KILLS = 8
SAVING = """
import sys
from pathlib import Path
from reprise.drafters.ngram_mod.table import NgramModTables
tables = NgramModTables("v", n=2, size=1 << 18, file=Path(sys.argv[1]))
if tables.file.exists():
    tables.load()
table = tables.table("")
for start in range(tables.status()["occupied"], 10**9, 1000):
    table.learn(range(start, start + 1002))
    tables.save()
    print(tables.status()["occupied"], flush=True)
"""


def test_a_kill_while_saving_leaves_the_last_complete_file(tmp_path: Path) -> None:
    file = tmp_path / "ngrams"
    for number in range(NUM_KILLS):
        saving = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(file)], stdout=subprocess.PIPE, text=True
        )
        assert saving.stdout is not None
        saved = 0
        # By now the next save has started and may be at any stage.
        for _ in range(1 + number):
            saved = int(saving.stdout.readline())
        saving.send_signal(signal.SIGKILL)
        rest = saving.stdout.read().split()
        assert saving.wait() == -signal.SIGKILL
        saved = int(rest[-1]) if rest else saved
        tables = NgramModTables("v", n=2, size=1 << 18, file=file)
        tables.load()
        assert tables.status()["occupied"] >= saved > 0
    _grow_old(tmp_path)
    tables.load()
    assert list(tmp_path.iterdir()) == [file]


def test_the_next_save_removes_the_unfinished_file_of_a_killed_process(tmp_path: Path) -> None:
    file = tmp_path / "ngrams"
    unfinished_path(file).write_bytes(b"half a table")
    in_progress = unfinished_path(file)
    _grow_old(tmp_path)
    in_progress.write_bytes(b"another process's")
    NgramModTables("v", n=2, size=1 << 18, file=file).save()
    assert set(tmp_path.iterdir()) == {file, in_progress}


def _grow_old(folder: Path) -> None:
    then = time.time() - UNFINISHED_S - 60
    for path in folder.iterdir():
        os.utime(path, (then, then))
