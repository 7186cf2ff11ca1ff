"""After a thousand requests were cancelled at random moments, among others, nothing of them is left."""

import gc
import random
import threading
import weakref

import mlx.core as mx
import pytest

from reprise.drafters.base import Draft, DraftQuery, SequenceStart
from reprise.engine.engine import Engine
from reprise.engine.interface.events import Event, Failed
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import loaded_once
from tests.engine.support import ask, prompt_of, request, wait_until

NUM_CANCELLED = {"some": 50, "many": 250}
"""Cancelled requests for each of the four engines below."""
MAX_AT_ONCE = 40
PROMPTS = [tuple(prompt_of(length, length)) for length in (1, 9, 33, 70, 150)]
"""Few prompts, so that many requests share prefill and cached prefixes, as the choices of one request do."""


class Repeating:
    """A drafter that repeats the last token. last: the last token of each open sequence."""

    name = "suffix"

    def __init__(self) -> None:
        self.last: dict[int, int] = {}

    def open(self, start: SequenceStart) -> None:
        self.last[start.seq] = start.prompt[-1]

    def propose(self, query: DraftQuery) -> Draft:
        token = self.last[query.seq]
        return Draft([token] * min(3, query.limit), self.name, 0, 0.9) if token % 3 == 0 else Draft()

    def observe(self, seq: int, tokens: list[int]) -> None:
        self.last[seq] = tokens[-1]

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        pass

    def close(self, seq: int) -> None:
        del self.last[seq]


class Leaver:
    """The sink of a client that cancels after patience events, never if None. ends: its terminal events."""

    def __init__(self, engine: Engine, name: str, patience: int | None, room: threading.Semaphore) -> None:
        self.engine, self.name, self.patience, self.room = engine, name, patience, room
        self.num_events = 0
        self.ends: list[Event] = []

    @property
    def was_cancelled(self) -> bool:
        return any(isinstance(end, Failed) and end.kind == "cancelled" for end in self.ends)

    def __call__(self, event: Event) -> None:
        self.num_events += 1
        if event.is_terminal:
            self.ends.append(event)
            self.room.release()
        elif self.num_events == self.patience:
            self.engine.cancel(self.name)


def leave_at_random(engine: Engine, rng: random.Random, num_cancelled: int) -> list[weakref.ref[Leaver]]:
    """Submit requests until num_cancelled were cancelled; return weak references to their sinks."""
    room = threading.Semaphore(MAX_AT_ONCE)
    leavers: list[Leaver] = []
    while sum(leaver.was_cancelled for leaver in leavers) < num_cancelled:
        assert room.acquire(timeout=60)
        number = len(leavers)
        one = request(rng.choice(PROMPTS), rng.randint(1, 8), name=str(number), temperature=0.9, seed=number)
        leavers.append(Leaver(engine, one.id, rng.choice([None, 1, 2, 4]), room))
        engine.submit(one, leavers[-1])
        if rng.random() < 0.7:
            # Some are cancelled before admission, some while another prompt is prefilled.
            engine.cancel(str(rng.randint(max(0, number - 5), number)))
    for _ in range(MAX_AT_ONCE):
        assert room.acquire(timeout=60)
    assert {len(leaver.ends) for leaver in leavers} == {1}
    assert not all(leaver.was_cancelled for leaver in leavers)
    return [weakref.ref(leaver) for leaver in leavers]


def settled_bytes(engine: Engine) -> int:
    """Wait until the engine is idle; return the bytes that MLX holds then."""
    wait_until(lambda: engine.status().num_running == engine.status().num_waiting == 0)
    # margin() runs between steps, so after the last row was removed.
    engine.margin((1, 2, 3))
    gc.collect()
    return mx.get_active_memory()


@pytest.mark.parametrize("how_many", ["some", pytest.param("many", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "prefix_cache_bytes", "with_draft_model"),
    [("llama", 0, False), ("llama", 2**20, False), ("gemma3_text", 0, False), ("llama", 0, True)],
    ids=["plain", "with a prefix cache", "with windows", "with a draft model"],
)
def test_nothing_is_left_of_cancelled_requests(
    name: str, prefix_cache_bytes: int, with_draft_model: bool, how_many: str, start_engine: StartEngine
) -> None:
    rng = random.Random(1)
    drafter = Repeating()
    engine = start_engine(
        load=lambda _: loaded_once(name),
        make_sources=lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        load_draft=(lambda _: loaded_once(name)) if with_draft_model else None,
        max_rows=4,
        prefix_cache_bytes=prefix_cache_bytes,
        prefill_chunk_tokens=32,
        max_stall_ms=0,
    )
    ask(engine, request(PROMPTS[2], name="first", max_tokens=4)).finished()
    bytes_before = settled_bytes(engine) - sum(one["num_bytes"] for one in engine.prefix_status().values())
    threads_before = set(threading.enumerate())
    sinks = leave_at_random(engine, rng, NUM_CANCELLED[how_many])
    assert settled_bytes(engine) <= bytes_before + prefix_cache_bytes
    assert set(threading.enumerate()) <= threads_before
    assert not drafter.last
    assert [sink() for sink in sinks if sink() is not None] == []
    assert engine.status().state == "ready"
