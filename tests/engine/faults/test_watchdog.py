"""An engine that hangs reports a stall once, and reports when it makes progress again."""

import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from reprise.engine import loop
from reprise.engine.interface.status import EngineStatus
from reprise.engine.pool.watchdog import Watchdog
from tests.engine.conftest import StartEngine
from tests.engine.faults.test_faults import Poisoned
from tests.engine.support import ask, prompt_of, request, wait_until

STALL_S = 0.3


class Hanging(Poisoned):
    """A model that hangs in a step with the poison token until may_continue is set."""

    may_continue: threading.Event

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        if (tokens == 4000).any().item():
            self.may_continue.wait(60)
        logits: mx.array = self.model(tokens, cache=cache)
        return logits


@pytest.mark.parametrize("at", [3, -1], ids=["prefill", "decode"])
def test_a_step_that_hangs_is_a_stall_until_it_goes_on(
    at: int, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "STALL_S", STALL_S)
    caplog.set_level(logging.WARNING, "reprise.engine")
    Hanging.may_continue = threading.Event()
    engine = start_engine(wrap=Hanging)
    prompt = prompt_of(9)
    prompt[at] = 4000
    answer = ask(engine, request(prompt, max_tokens=4))
    wait_until(lambda: engine.status().state == "stalled")
    stalled: EngineStatus = engine.status()
    assert "no token and no prefill progress for 0.3 s" in str(stalled.fault)
    assert engine.counts().num_stalls == 1
    # A request that arrives now waits too, and is not reported again.
    late = ask(engine, request(prompt_of(8), name="late", max_tokens=4))
    Hanging.may_continue.set()
    answer.finished()
    late.finished()
    wait_until(lambda: engine.status().state == "ready")
    assert caplog.messages == [
        "the engine stalls: no token and no prefill progress for 0.3 s while requests wait",
        "the engine makes progress again after a stall",
    ]


@pytest.mark.parametrize("seen", [itertools.repeat(None), itertools.count()], ids=["idle", "busy"])
def test_neither_an_idle_engine_nor_a_busy_one_stalls(seen: Iterator[int | None]) -> None:
    num_looks = 0

    def look() -> int | None:
        nonlocal num_looks
        num_looks += 1
        return next(seen)

    stalls: list[None] = []
    watchdog = Watchdog(0.1, look, lambda: stalls.append(None), lambda: None)
    watchdog.start()
    wait_until(lambda: num_looks > 50)
    watchdog.stop()
    assert watchdog.reason is None
    assert not stalls


def test_a_stall_is_counted_before_it_can_be_seen() -> None:
    seen_at_count: list[str | None] = []
    watchdog = Watchdog(0.1, lambda: "the same", lambda: seen_at_count.append(watchdog.reason), lambda: None)
    watchdog.start()
    wait_until(lambda: watchdog.reason is not None)
    watchdog.stop()
    assert seen_at_count == [None]
