"""sentence-transformers as a peer, in a process of another Python: what its users have, without HTTP."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from reprise.bench.errors import BenchError
from reprise.bench.serving.servers import exit_on_sigterm

LIBRARY = "sentence-transformers"

# Only the loop runs in the other Python, which has nothing of Reprise.
_LOOP = """
import json, sys, time
answers, sys.stdout = sys.stdout, sys.stderr
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu" if sys.platform != "darwin" else None)
print("ready", file=answers, flush=True)
for line in sys.stdin:
    texts, start = json.loads(line), time.perf_counter()
    vectors = model.encode(texts, batch_size=max(1, min(64, len(texts))))
    seconds = time.perf_counter() - start
    print(json.dumps([seconds, vectors.tolist()]), file=answers, flush=True)
"""


def start_library(children: ExitStack, python: str, folder: str) -> Any:
    """Start sentence-transformers in a process; return a function that embeds texts as run_embed.ask() does.

    children: the stack with which the process ends. python: its interpreter. folder: the model.
    Raises BenchError if the process does not start, or cannot load the model.
    """
    exit_on_sigterm()
    try:
        child = children.enter_context(
            subprocess.Popen(
                [python, "-c", _LOOP, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    except OSError as fault:
        raise BenchError(f"--sentence-transformers {python}: {fault.strerror or fault}") from None
    children.callback(child.kill)
    assert child.stdin
    assert child.stdout
    lines, answers = child.stdin, child.stdout
    if answers.readline().strip() != "ready":
        raise BenchError(
            f"--sentence-transformers {python}: it cannot load {folder}, or is not installed there"
        )

    def embed(texts: Sequence[str]) -> tuple[float, np.ndarray[Any, Any]]:
        lines.write(json.dumps(list(texts)) + "\n")
        lines.flush()
        if not (line := answers.readline()):
            raise OSError("it has ended")
        seconds, vectors = json.loads(line)
        return seconds, np.array(vectors)

    return embed
