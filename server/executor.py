"""Run blocking work on threads: clients in rotation, and a few threads for each other purpose."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, ParamSpec, TypeVar

from starlette.requests import HTTPConnection, Request

from reprise.config.freed_memory import return_freed
from reprise.engine.interface.wanted import run_while

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


_Job = tuple[asyncio.Future[Any], Callable[[], Any]]

OWNER = "reprise.owner"
"""Name of the entry in a request's scope that holds the digest of its checked API key."""
SMALL_BYTES = 32 * 2**10
"""A larger body is handled on a thread: it would hold the event loop for longer than the switch takes."""
TRIM_AFTER_S = 2.0
"""How long after a body of more than LARGE_BYTES, or a long prompt, its memory is returned to the system."""
LARGE_BYTES = 2**20
"""A larger body has a thread of its own, so that others do not wait for it."""
VALUE_BYTES = 20
"""The work of parsing and validating a value, besides its text, in bytes of text."""


def client_of(request: HTTPConnection) -> str:
    """Return the client whose requests share limits: the digest of its checked API key, or else its address.

    A key that was not checked does not count: a client could send a new one with every request.
    """
    owner: str | None = request.scope.get(OWNER)
    if owner is not None:
        return owner
    return request.client.host if request.client else ""


def weight_of(body: bytes) -> int:
    """Estimate the work of parsing a body, as the number of bytes of plain text that takes as long."""
    return len(body) if len(body) > SMALL_BYTES else len(body) + VALUE_BYTES * body.count(b",")


async def beside(request: Request, job: Callable[[], ResultT]) -> ResultT:
    """Do work that grows with a request's body: at once if the body is small, else on a thread.

    Raises the job's exception.
    """
    bodies: BodyLanes = request.app.state.service.bodies
    return await bodies.run(request, weight_of(await request.body()), job)


class Lane:
    """One or more threads that run clients' jobs in rotation, at most one job of a client at a time.

    Use it on one event loop only.
    """

    def __init__(self, purpose: str, num_threads: int = 1) -> None:
        self._threads, self._num_threads = ThreadPoolExecutor(num_threads, purpose), num_threads
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._running: set[str] = set()

    async def run(self, client: str, job: Callable[[], ResultT]) -> ResultT:
        """Run a job on a thread when its client is next in rotation. Raises the job's exception.

        If this call is cancelled, a running job ends at its next slice (see engine/interface/wanted.py).
        """
        done: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append((done, job))
        self._start_next()
        return await done

    def num_waiting(self, client: str) -> int:
        """Return how many jobs of a client have not begun."""
        return sum(not done.done() for done, _ in self._waiting.get(client, ()))

    def close(self) -> None:
        """Stop the threads and cancel the jobs that have not begun."""
        for done, _ in chain.from_iterable(self._waiting.values()):
            done.cancel()
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_next(self) -> None:
        for client, jobs in list(self._waiting.items()):
            # Nobody waits for these any more.
            while jobs and jobs[0][0].done():
                jobs.popleft()
            if jobs and client not in self._running and len(self._running) < self._num_threads:
                done, job = jobs.popleft()
                self._running.add(client)
                # To the end: all others come first.
                self._waiting.move_to_end(client)
                work = partial(run_while, partial(_is_wanted, done), job)
                running = asyncio.get_running_loop().run_in_executor(self._threads, work)
                running.add_done_callback(partial(self._finish, client, done))
            if not jobs:
                del self._waiting[client]

    def _finish(self, client: str, done: asyncio.Future[Any], ran: asyncio.Future[Any]) -> None:
        self._running.remove(client)
        if ran.cancelled():
            # The server stops, and nothing else will run.
            done.cancel()
            return
        # Read even if nobody waits any more: asyncio would log it as never retrieved.
        fault = ran.exception()
        if not done.done():
            done.set_exception(fault) if fault else done.set_result(ran.result())
        self._start_next()


def _is_wanted(done: asyncio.Future[Any]) -> bool:
    return not done.done()


class BodyLanes:
    """The threads that parse large bodies, and that work on stored responses of such a size."""

    def __init__(self) -> None:
        self._large, self._huge = Lane("bodies"), Lane("huge-bodies")
        self._trimmer = ThreadPoolExecutor(1, thread_name_prefix="trim")
        self._trim: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def run(self, request: HTTPConnection, num_bytes: int, job: Callable[[], ResultT]) -> ResultT:
        """Do a job of a request, on a thread if it is about many bytes. Raises the job's exception."""
        if num_bytes <= SMALL_BYTES:
            return job()
        if num_bytes <= LARGE_BYTES:
            return await self._large.run(client_of(request), job)
        try:
            return await self._huge.run(client_of(request), job)
        finally:
            self.trim_soon()

    def trim_soon(self) -> None:
        """Return freed memory to the system, TRIM_AFTER_S from now."""
        if self._trim is None and not self._is_closed:
            self._trim = asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._return_memory)

    def _return_memory(self) -> None:
        self._trim = None
        asyncio.get_running_loop().run_in_executor(self._trimmer, return_freed)

    def close(self) -> None:
        """Stop the threads."""
        self._is_closed = True
        self._large.close()
        self._huge.close()
        if self._trim is not None:
            self._trim.cancel()
        self._trimmer.shutdown(wait=False)
