"""Admission reads each waiting prompt once, and costs next to nothing while nothing changes."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.memory import estimate
from reprise.engine.memory.estimate import Estimate
from reprise.engine.scheduler import request_queue
from tests.engine.driven import Driven, loaded_once
from tests.engine.support import prompt_of, request

NUM_WAITING = 64
NUM_TOKENS = 20_000
MAX_ROWS = 8


class Counted(list[int]):
    """Tokens that count how often they are read, whichever way."""

    num_read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Counted.num_read += len(found) if isinstance(at, slice) else 1
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        Counted.num_read += len(self)
        return np.array(list(iter(self)), dtype)


def ask_many(driven: Driven, prompts: list[list[int]]) -> int:
    """Submit prompts that count how often they are read; return their number of tokens."""
    Counted.num_read = 0
    for i, prompt in enumerate(prompts):
        driven.ask(request(prompt, 8, name=str(i)))
        waiting = driven.worker.queue.waiting[-1]
        waiting.tokens = waiting.keys = Counted(waiting.tokens)
    return sum(map(len, prompts))


def drive(prefix_cache_bytes: int) -> Driven:
    """Make a worker that prefills few tokens at a time, so that prompts keep prefilling."""
    return Driven(
        loaded_once("llama"),
        max_rows=MAX_ROWS,
        prefill_chunk_tokens=16,
        max_stall_ms=0,
        prefix_cache_bytes=prefix_cache_bytes,
    )


def prompts_that_share(num_shared: int) -> list[list[int]]:
    """Make prompts of NUM_TOKENS with the same first tokens, and then their own."""
    shared = prompt_of(num_shared)
    return [[*shared, *prompt_of(NUM_TOKENS - num_shared, i + 1)] for i in range(NUM_WAITING)]


def cache_prefix(driven: Driven, tokens: list[int]) -> None:
    """Put tokens into the prefix cache, with keys and values that are all 0."""
    cache = driven.worker.queue.prefixes.cache
    assert cache
    cache.put(tokens, lambda start, end: [mx.zeros((1, 2, end - start, 8))] * 4, [])


@pytest.mark.parametrize("num_shared", [20, 15_000])
@pytest.mark.parametrize("prefix_cache_bytes", [0, 10**9])
def test_a_prompt_is_read_a_few_times_however_many_prefill_beside_it(
    num_shared: int, prefix_cache_bytes: int
) -> None:
    """Let the prefilling prompts leave one by one, so that all others look for one to wait for again."""
    driven = drive(prefix_cache_bytes)
    if prefix_cache_bytes:
        # Nothing is worth waiting for: what the prompts share is cached.
        cache_prefix(driven, prompt_of(num_shared))
    num_tokens = ask_many(driven, prompts_that_share(num_shared))
    for _ in range(20):
        driven.worker.step()
        driven.worker.cancel(driven.worker.prefilling[0].request.id)
    assert len(driven.worker.queue.waiting) > NUM_WAITING // 2
    assert Counted.num_read <= 3 * num_tokens


def test_a_prompt_that_waits_for_another_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "MAX_SEARCH_S", 60.0)
    driven = drive(prefix_cache_bytes=10**9)
    ask_many(driven, prompts_that_share(15_000))
    driven.worker.step()
    assert len(driven.worker.prefilling) == 1
    Counted.num_read = 0
    for _ in range(10):
        driven.worker.step()
    # The one that prefills is read, a chunk at a time.
    assert Counted.num_read == 10 * 16


def test_prompts_that_share_little_are_not_read_to_their_ends() -> None:
    driven = drive(prefix_cache_bytes=10**9)
    ask_many(driven, prompts_that_share(20))
    driven.worker.step()
    num_admitted = len(driven.worker.prefilling)
    assert num_admitted < MAX_ROWS
    assert Counted.num_read < 2 * num_admitted * NUM_TOKENS + NUM_WAITING * 1000


def test_a_step_that_has_compared_for_long_leaves_the_rest_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_queue, "MAX_SEARCH_S", 0.0)
    driven = drive(prefix_cache_bytes=10**9)
    ask_many(driven, [[*prompt_of(200), 5 + i] for i in range(6)])
    for num_compared in (1, 2, 3):
        driven.worker.step()
        waiting = driven.worker.queue.waiting
        assert [bool(s.prefix.compared) for s in waiting] == [i < num_compared for i in range(5)]
    driven.finish()


def test_a_step_that_has_searched_files_for_long_leaves_the_rest_to_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(request_queue, "MAX_SEARCH_S", 0.0)
    driven = Driven(loaded_once("llama"), max_rows=2, prefill_chunk_tokens=16, prefix_cache_dir=str(tmp_path))
    ask_many(driven, [prompt_of(200, i) for i in range(4)])
    for num_searched in (1, 2, 3):
        driven.worker.step()
        waiting = driven.worker.queue.waiting
        assert [s.prefix.is_disk_searched for s in waiting] == [i < num_searched for i in range(3)]
    driven.finish()


def test_what_did_not_fit_begins_when_another_model_gives_memory_back() -> None:
    driven = Driven(loaded_once("llama"), prefix_cache_bytes=0)
    budget = driven.worker.queue.memory_budget
    driven.ask(request(prompt_of(40), 400, name="runs"))
    driven.worker.step()
    room_bytes = budget.room_bytes
    budget.room_bytes = budget.used_bytes + budget.bytes_alone(450) // 20
    driven.ask(request(prompt_of(400, 2), 40, name="waits"))
    for _ in range(4):
        driven.worker.step()
    assert [one.request.id for one in driven.worker.queue.waiting] == ["waits"]
    budget.room_bytes = room_bytes
    driven.worker.step()
    assert not driven.worker.queue.waiting
    driven.finish()


def test_memory_is_estimated_once_for_all_prompts_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = drive(prefix_cache_bytes=0)
    estimates: list[Estimate] = []

    def count(*numbers: int) -> Estimate:
        estimates.append(Estimate(*numbers))
        return estimates[-1]

    ask_many(driven, [prompt_of(900, i) for i in range(NUM_WAITING)])
    # A sequence that is alone may always run.
    driven.worker.queue.memory_budget.room_bytes = 1
    driven.worker.step()
    assert len(driven.worker.running) == 1
    monkeypatch.setattr(estimate, "Estimate", count)
    for _ in range(10):
        driven.worker.step()
    # The other estimate of each step is make_room()'s.
    assert len(driven.worker.queue.waiting) == NUM_WAITING - 1
    assert 10 <= len(estimates) <= 10 + 2
