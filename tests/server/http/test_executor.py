"""Clients are served in rotation on a thread, however much work each of them has."""

import asyncio
import queue
import threading
from functools import partial

import pytest

from reprise.engine.interface.cancellation import check_wanted
from reprise.server.http.executor import LARGE_BYTES, Executor, FairThreads


@pytest.fixture
async def lane():
    made = FairThreads("test")
    yield made
    made.close()


async def test_a_client_with_one_job_waits_for_one_of_each_other_client(lane):
    done, may_begin = [], threading.Event()
    first = asyncio.ensure_future(lane.run("many", may_begin.wait))
    others = [("many", number) for number in range(5)] + [("few", 0), ("others", 0), ("few", 1)]
    jobs = [lane.run(client, lambda job=(client, number): done.append(job)) for client, number in others]
    rest = asyncio.gather(*jobs)
    await asyncio.sleep(0)
    may_begin.set()
    await asyncio.gather(first, rest)
    assert done[:5] == [("many", 0), ("few", 0), ("others", 0), ("many", 1), ("few", 1)]
    assert len(done) == len(others)


async def test_a_fault_reaches_who_waits_and_nobody_else(lane):
    faulty = asyncio.ensure_future(lane.run("a", lambda: [][0]))
    assert await lane.run("a", lambda: 5) == 5
    with pytest.raises(IndexError):
        await faulty


async def test_work_in_slices_that_nobody_waits_for_any_more_ends(lane):
    begun = threading.Event()

    def work_for_ever():
        begun.set()
        while True:
            check_wanted()

    left = asyncio.ensure_future(lane.run("a", work_for_ever))
    await asyncio.to_thread(begun.wait)  # noqa: TID251
    left.cancel()
    assert await lane.run("a", lambda: 5) == 5


async def test_work_that_nobody_waits_for_any_more_is_not_begun(lane):
    done, may_begin = [], threading.Event()
    first = asyncio.ensure_future(lane.run("a", may_begin.wait))
    left = asyncio.ensure_future(lane.run("a", lambda: done.append("left")))
    await asyncio.sleep(0)
    left.cancel()
    may_begin.set()
    await first
    assert await lane.run("a", lambda: list(done)) == []


async def test_several_threads_run_one_job_of_each_client():
    lane, may_end, begun = FairThreads("test", 2), threading.Event(), queue.SimpleQueue()

    def work(client):
        begun.put(client)
        may_end.wait()

    jobs = [asyncio.ensure_future(lane.run(client, partial(work, client))) for client in "aabbc"]
    assert {await asyncio.to_thread(begun.get) for _ in range(2)} == {"a", "b"}  # noqa: TID251
    jobs[1].cancel()
    may_end.set()
    await asyncio.gather(*jobs[:1], *jobs[2:])
    assert {begun.get_nowait() for _ in range(2)} == {"b", "c"}
    lane.close()


async def test_what_waits_when_the_threads_are_stopped_is_cancelled():
    lane, may_end = FairThreads("test"), threading.Event()
    jobs = [asyncio.ensure_future(lane.run(client, may_end.wait)) for client in "ab"]
    await asyncio.sleep(0)
    lane.close()
    may_end.set()
    await jobs[0]
    with pytest.raises(asyncio.CancelledError):
        await jobs[1]


async def test_long_jobs_of_two_clients_hold_up_neither_a_third_one_nor_short_jobs():
    executor, may_end = Executor(), threading.Event()
    held = [asyncio.ensure_future(executor.run(client, 2 * LARGE_BYTES, may_end.wait)) for client in "aab"]
    await asyncio.sleep(0)
    assert await executor.run("c", 2 * LARGE_BYTES, lambda: 5) == 5
    assert await executor.run("a", 10, lambda: 6) == 6
    assert await executor.background.run("a", lambda: 7) == 7
    may_end.set()
    await asyncio.gather(*held)
    executor.close()


async def test_a_client_has_two_short_jobs_at_once_and_others_come_between():
    executor, may_end = Executor(), threading.Event()
    held = [asyncio.ensure_future(executor.run("a", 10, may_end.wait)) for _ in range(20)]
    await asyncio.sleep(0)
    assert await executor.run("b", 10, lambda: 5) == 5
    may_end.set()
    await asyncio.gather(*held)
    executor.close()
