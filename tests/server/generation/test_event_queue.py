import asyncio
import threading

from reprise.engine.interface.events import Delta
from reprise.server.generation.answer import EventQueue
from reprise.server.generation.service import EventBridge

NEVER_S = 1000


class _CountingLoop:
    """Event loop that counts how often another thread wakes it."""

    def __init__(self, loop):
        self.loop = loop
        self.num_calls = 0

    def call_soon_threadsafe(self, callback):
        self.num_calls += 1
        self.loop.call_soon_threadsafe(callback)


def _post_from_a_thread(bridge, posts):
    def post_all():
        for event_queue, event in posts:
            bridge.post(event_queue.put, event)

    thread = threading.Thread(target=post_all)
    thread.start()
    # Joining blocks the loop in the meantime, as if it were busy.
    thread.join()


async def test_events_posted_while_the_loop_is_busy_wake_it_once_and_arrive_in_one_batch():
    loop = _CountingLoop(asyncio.get_running_loop())
    bridge = EventBridge(loop)
    queues = [EventQueue(NEVER_S) for _ in range(8)]
    events = [(queue, (0, Delta(str(step)))) for step in range(100) for queue in queues]
    _post_from_a_thread(bridge, events)
    for queue in queues:
        assert [event.text for _, event in await queue.receive()] == [str(step) for step in range(100)]
        queue.close()
    assert loop.num_calls == 1


async def test_a_later_event_wakes_the_loop_again():
    bridge = EventBridge(asyncio.get_running_loop())
    queue = EventQueue(NEVER_S)
    for text in "abc":
        _post_from_a_thread(bridge, [(queue, (0, Delta(text)))])
        assert await queue.receive() == [(0, Delta(text))]
    queue.close()


async def test_nothing_is_lost_or_reordered_between_two_busy_threads():
    bridge = EventBridge(asyncio.get_running_loop())
    queue = EventQueue(NEVER_S)
    events = [(queue.put, (0, Delta(str(step)))) for step in range(20_000)]
    thread = threading.Thread(target=lambda: [bridge.post(*event) for event in events])
    thread.start()
    received = []
    while len(received) < len(events):
        received += await queue.receive()
    thread.join()
    queue.close()
    assert received == [event for _, event in events]


async def test_receive_returns_after_each_silence():
    queue = EventQueue(silence_s=0.01)
    assert await queue.receive() == []
    assert await queue.receive() == []
    queue.put((0, Delta("a")))
    assert await queue.receive() == [(0, Delta("a"))]
    assert await queue.receive() == []
    queue.close()


async def test_posting_to_a_loop_that_is_closed_does_not_raise():
    loop = asyncio.new_event_loop()
    loop.close()
    queue = EventQueue(NEVER_S)
    EventBridge(loop).post(queue.put, (0, Delta("a")))
    queue.close()
