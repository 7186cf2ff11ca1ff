"""Threads for blocking work, so that nothing holds the event loop and no client waits for another's work."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeVar, TypeVarTuple

from starlette.requests import HTTPConnection

from reprise.config.process_memory import return_freed
from reprise.engine.interface.cancellation import run_while

Arguments = TypeVarTuple("Arguments")
ResultT = TypeVar("ResultT")
_Job = tuple[asyncio.Future[Any], Callable[[], Any]]

OWNER = "reprise.owner"
"""Name of the entry in a request's scope that holds the digest of its checked API key."""
SMALL_BYTES = 32 * 2**10
"""A larger body is parsed on a thread: it would hold the event loop for longer than the switch takes."""
LARGE_BYTES = 2**20
"""Jobs about more bytes run on threads of their own, so that others do not wait for them."""
TRIM_AFTER_S = 2.0
"""How long after a job about more than LARGE_BYTES its memory is returned to the system."""


class Threads:
    """At most num_threads threads for one purpose. Calls that come when all are busy wait in order.

    So a hanging disk or machine blocks only calls of its own kind.
    """

    def __init__(self, purpose: str, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=purpose)

    async def run(self, job: Callable[[*Arguments], ResultT], *args: *Arguments) -> ResultT:
        """Call a function on one of the threads; return its result or raise its exception."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, job, *args)


MODEL_FILES = Threads("model-files", 4)
"""Look models up, which reads their folders."""
FORMAT = Threads("format", 2)
"""Write long responses."""
SCHEMA_CHECKS = Threads("schema-checks", 4)
"""Wait for the process that checks answers."""
CONTROL = Threads("control", 1)
"""Wait for the engine, or for the last writes of the record."""


def client_of(request: HTTPConnection) -> str:
    """Return the identity by which limits are shared: the digest of the checked API key, or else the address.

    A key that was not checked does not count: a client could send a new one with every request.
    """
    owner: str | None = request.scope.get(OWNER)
    if owner is not None:
        return owner
    return request.client.host if request.client else ""


class FairThreads:
    """One or more threads that run clients' jobs in rotation. Use it on one event loop only.

    num_per_client: maximum jobs of a client that run at once.
    """

    def __init__(self, purpose: str, num_threads: int = 1, num_per_client: int = 1) -> None:
        self._threads, self._num_threads = ThreadPoolExecutor(num_threads, purpose), num_threads
        self._num_per_client = num_per_client
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._running: Counter[str] = Counter()

    async def run(self, client: str, job: Callable[[], ResultT]) -> ResultT:
        """Run a job on a thread when its client is next in rotation. Raises the job's exception.

        If this call is cancelled, a running job ends at its next slice; see engine/interface/cancellation.py.
        """
        done: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append((done, job))
        self._start_next()
        return await done

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
            has_room = self._running.total() < self._num_threads
            if jobs and has_room and self._running[client] < self._num_per_client:
                done, job = jobs.popleft()
                self._running[client] += 1
                # To the end: all others come first.
                self._waiting.move_to_end(client)
                work = partial(run_while, partial(_is_wanted, done), job)
                running = asyncio.get_running_loop().run_in_executor(self._threads, work)
                running.add_done_callback(partial(self._finish, client, done))
            if not jobs:
                del self._waiting[client]

    def _finish(self, client: str, done: asyncio.Future[Any], ran: asyncio.Future[Any]) -> None:
        # Positive counts only: no client that has left is remembered.
        self._running = self._running - Counter([client])
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


class Executor:
    """The threads that parse large bodies and prepare requests for the engine, clients in rotation.

    Long jobs have separate threads. Each client has a limit per kind, so slow jobs delay only their own
    client.
    background: for jobs that no answer waits for. documents: reads them, each in a process that all share.
    """

    def __init__(self) -> None:
        self._short = FairThreads("requests", 4, num_per_client=2)
        self._long = FairThreads("long-requests", 3)
        # One thread: it must not take the interpreter from the engine's thread.
        self.background = FairThreads("background")
        self.documents = FairThreads("documents")
        self._trimmer = ThreadPoolExecutor(1, thread_name_prefix="trim")
        self._trim: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def run(self, client: str, num_bytes: int, job: Callable[[], ResultT]) -> ResultT:
        """Run a job on num_bytes of input on a thread, clients in rotation. Raises the job's exception."""
        if num_bytes <= LARGE_BYTES:
            return await self._short.run(client, job)
        try:
            return await self._long.run(client, job)
        finally:
            if self._trim is None and not self._is_closed:
                self._trim = asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._return_memory)

    def _return_memory(self) -> None:
        self._trim = None
        asyncio.get_running_loop().run_in_executor(self._trimmer, return_freed)

    def close(self) -> None:
        """Stop the threads."""
        self._is_closed = True
        for threads in (self._short, self._long, self.background, self.documents):
            threads.close()
        if self._trim is not None:
            self._trim.cancel()
        self._trimmer.shutdown(wait=False)
