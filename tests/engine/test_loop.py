"""When the loop measures what steps cost: only where no client sends one request after another."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from reprise.config.settings import Settings
from reprise.engine.loop import Loop
from reprise.engine.pool.catalogue import Catalogue
from reprise.engine.pool.model_engine import Call, Inbox, ModelEngine
from reprise.engine.pool.residency import Residency
from reprise.engine.pool.served_models import KnownModels, ServedModel


class ScriptedWake:
    """Wakes the loop for messages that come one by one; before a pause nothing comes for a while."""

    def __init__(self, script: list[Any], inbox: Inbox) -> None:
        self.script, self.inbox = script, inbox

    def clear(self) -> None: ...

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float) -> bool:
        assert timeout, "it would wait forever"
        if (message := self.script.pop(0)) == "pause":
            return False
        self.inbox.put(message)
        return True


class IdleEngine(ModelEngine):
    """An engine without requests. num_measured: how often costs were measured."""

    worker: Any = SimpleNamespace(has_work=False, is_blocked=False, num_progressed=0, running=())
    num_measured = 0

    def load(self, _: Any) -> None:
        self._about = Any, SimpleNamespace(markers=None, fim=None)  # type: ignore[assignment]

    def unload(self) -> None: ...

    def pause(self) -> None: ...

    def end_all(self, _: Any) -> None: ...

    def counts(self) -> Any: ...

    memory_budget = None

    @property
    def _step(self) -> Any: ...

    def _handle(self, message: Any) -> None:
        if isinstance(message, Call):
            message.perform()

    def prepare(self, is_over: Any) -> bool:  # noqa: ARG002
        self.num_measured += 1
        return False


class DyingEngine(IdleEngine):
    """An engine whose every step fails, and that keeps its work. num_steps: how often a step was tried."""

    worker: Any = SimpleNamespace(has_work=True, is_blocked=False, num_progressed=0, running=())
    num_steps = 0

    @property
    def _step(self) -> Any:
        self.num_steps += 1
        assert self.num_steps < 100, "it goes on after its death"
        return lambda: 1 // 0

    def die(self, fault: BaseException) -> None:
        if isinstance(fault, AssertionError):
            raise fault
        super().die(fault)


def loop_of(known: KnownModels, on_death: Callable[[str], None]) -> Loop:
    """Return a loop over models whose engines are there already."""
    no_maker: Any = SimpleNamespace(save=lambda: None)
    return Loop(known, Residency(known, no_maker), on_death)


def run(script: list[str]) -> list[int]:
    """Run a loop; return how often costs had been measured at each message."""
    seen: list[int] = []
    settings = Settings()
    known = KnownModels(settings, {}, Catalogue(settings), may_unload=False)
    engine = IdleEngine(settings, Inbox(lambda: None))
    wake = ScriptedWake([], engine.inbox)
    known.wake = wake  # type: ignore[assignment]
    known.first.engine = engine
    for event in script:
        wake.script.append(event if event == "pause" else _noting(engine, seen))
    wake.script.append(_stopping(known, engine))
    loop = loop_of(known, lambda _: None)
    loop.start()
    loop.join()
    return seen


def _noting(engine: IdleEngine, seen: list[int]) -> Call:
    class Nobody:
        def set_result(self, _: object) -> None: ...

    return Call(lambda: seen.append(engine.num_measured), Nobody())  # type: ignore[arg-type]


def _stopping(known: KnownModels, engine: IdleEngine) -> Call:
    class Nobody:
        def set_result(self, _: object) -> None: ...

    def stop() -> None:
        known.is_stopping = True
        engine.lifecycle.begin_draining(0)

    return Call(stop, Nobody())  # type: ignore[arg-type]


def test_costs_are_measured_in_pauses_and_not_between_requests_that_follow_each_other() -> None:
    assert run(["request", "request", "pause", "request", "request"]) == [0, 0, 1, 1]


def test_the_thread_ends_though_requests_were_ended_before_on_another_one() -> None:
    settings = Settings()
    known = KnownModels(settings, {}, Catalogue(settings), may_unload=False)
    engine = known.first.engine = DyingEngine(settings, Inbox(known.wake.set))
    # As Engine.abort() does when another machine is lost.
    known.fault = "another machine was lost"
    engine.abandon(known.fault)
    told: list[str] = []
    loop = loop_of(known, told.append)
    loop.start()
    loop.join()
    assert engine.num_steps == 1
    assert known.fault == "another machine was lost"
    assert not told


def test_a_model_that_cannot_be_freed_does_not_keep_others_from_ending() -> None:
    settings = Settings()
    known = KnownModels(settings, {}, Catalogue(settings), may_unload=False)
    freed: list[str] = []

    class Engine(IdleEngine):
        name = "first"

        def unload(self) -> None:
            freed.append(self.name)
            raise OSError("no space left on device")

    known.first.engine = Engine(settings, Inbox(known.wake.set))
    other = Engine(settings, Inbox(known.wake.set))
    other.name = "other"
    known.by_name["other"] = ServedModel(known.first.found, engine=other, is_loaded=True)
    died: list[str] = []
    loop = loop_of(known, died.append)
    loop.start()
    loop.stop(0)
    assert freed == ["first", "other"]
    assert not died


def test_an_interrupt_at_the_end_of_the_load_ends_the_thread() -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait(timeout)
            raise KeyboardInterrupt

    settings = Settings()
    known = KnownModels(settings, {}, Catalogue(settings), may_unload=False)
    engine = known.first.engine = IdleEngine(settings, Inbox(known.wake.set))
    loop = loop_of(known, lambda _: None)
    loop._started = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    assert engine.is_done


def test_nothing_is_read_ahead_while_a_model_waits_for_memory_to_be_loaded() -> None:
    settings = Settings()
    known = KnownModels(settings, {}, Catalogue(settings), may_unload=False)

    class Engine(IdleEngine):
        num_read = 0

        def read_next(self) -> bool:
            self.num_read += 1
            return self.num_read < 3

    engine = Engine(settings, Inbox(lambda: None))
    known.by_name["first"] = ServedModel(known.first.found, engine=engine, is_loaded=True)
    known.wake = ScriptedWake(["pause"] * 4, engine.inbox)  # type: ignore[assignment]
    loop = loop_of(known, lambda _: None)
    known.wanted.append(known.first)
    loop._rest()
    assert not engine.num_read
    known.wanted.clear()
    loop._rest()
    assert engine.num_read == 3
