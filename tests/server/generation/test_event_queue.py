import asyncio
import threading

from engine.request import Delta
from server.generation.event_queue import EventBridge, EventQueue

NEVER_S = 1000


class _CountingLoop:
    """Counts how often another thread wakes the loop."""

    def __init__(self, loop):
        self.loop = loop
        self.num_calls = 0

    def call_soon_threadsafe(self, callback):
        self.num_calls += 1
        self.loop.call_soon_threadsafe(callback)


def _post_from_a_thread(office, posts):
    def post_all():
        for event_queue, letter in posts:
            office.post(event_queue, letter)

    thread = threading.Thread(target=post_all)
    thread.start()
    # The loop stands still meanwhile, as it does when it is busy.
    thread.join()


async def test_what_comes_while_the_loop_is_busy_is_one_wake_and_one_batch_for_all_streams():
    loop = _CountingLoop(asyncio.get_running_loop())
    office = EventBridge(loop)
    boxes = [EventQueue(NEVER_S) for _ in range(8)]
    letters = [(box, (0, Delta(str(step)))) for step in range(100) for box in boxes]
    _post_from_a_thread(office, letters)
    for box in boxes:
        assert [event.text for _, event in await box.receive()] == [str(step) for step in range(100)]
        box.close()
    assert loop.num_calls == 1


async def test_a_letter_that_comes_later_wakes_the_loop_again():
    office = EventBridge(asyncio.get_running_loop())
    box = EventQueue(NEVER_S)
    for text in "abc":
        _post_from_a_thread(office, [(box, (0, Delta(text)))])
        assert await box.receive() == [(0, Delta(text))]
    box.close()


async def test_nothing_is_lost_or_reordered_between_two_busy_threads():
    office = EventBridge(asyncio.get_running_loop())
    box = EventQueue(NEVER_S)
    letters = [(box, (0, Delta(str(step)))) for step in range(20_000)]
    thread = threading.Thread(target=lambda: [office.post(*letter) for letter in letters])
    thread.start()
    received = []
    while len(received) < len(letters):
        received += await box.receive()
    thread.join()
    box.close()
    assert received == [letter for _, letter in letters]


async def test_silence_ends_a_wait_again_and_again():
    box = EventQueue(silence_s=0.01)
    assert await box.receive() == []
    assert await box.receive() == []
    box.put((0, Delta("a")))
    assert await box.receive() == [(0, Delta("a"))]
    assert await box.receive() == []
    box.close()


async def test_posting_to_a_loop_that_is_closed_does_not_raise():
    loop = asyncio.new_event_loop()
    loop.close()
    box = EventQueue(NEVER_S)
    EventBridge(loop).post(box, (0, Delta("a")))
    box.close()
