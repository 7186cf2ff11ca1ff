"""Run a program of this folder as each rank, over a real ring."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.end_to_end.machines.ranks import clean_environment, places

LIMIT_S = 600


def run_program(
    program: str,
    folder: Path,
    model: Path,
    num_ranks: int,
    *arguments: str,
    writes: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Run a program with a model on each rank until all end well; return what each wrote.

    arguments: after those of the model's folder and the file to write. writes: the ranks that write; None for
        all.
    """
    files = [folder / f"{num_ranks}-{rank}.json" for rank in range(num_ranks)]
    source = str(Path(__file__).with_name(f"{program}.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, source, str(model), str(file), *arguments],
            env=clean_environment() | {"PYTHONPATH": str(Path.cwd())} | place,
        )
        for file, place in zip(files, places(folder, num_ranks), strict=True)
    ]
    try:
        assert [process.wait(LIMIT_S) for process in processes] == [0] * num_ranks
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(file.read_text()) for at, file in enumerate(files) if writes is None or at in writes]
