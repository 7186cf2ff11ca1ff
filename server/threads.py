"""Threads for work that would block the event loop: a few for each purpose, never asyncio's own.

What hangs, such as a disk or another machine, then holds up only its own kind.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")


class Threads:
    """At most num_threads threads for one purpose. Calls that come when all are busy wait in order."""

    def __init__(self, purpose: str, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=purpose)

    async def run(
        self, job: Callable[Arguments, ResultT], *args: Arguments.args, **options: Arguments.kwargs
    ) -> ResultT:
        """Call a function on one of the threads; return its result or raise its exception."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(job, *args, **options))


MODEL_FILES = Threads("model-files", 4)
"""Look models up, which reads their folders."""
FORMAT = Threads("format", 2)
"""Write long responses."""
SCHEMA_CHECKS = Threads("schema-checks", 4)
"""Wait for the process that checks answers."""
PROMPT_LOG = Threads("prompt-log", 1)
"""Write prompts and answers to the log, in order."""
CONTROL = Threads("control", 1)
"""Wait for the engine, or for the last writes of the record."""
