"""When the loop measures what steps cost: only where no client sends one request after another."""

import queue
from types import SimpleNamespace
from typing import Any

from engine.lifecycle import Lifecycle
from engine.loop import Call, Loop, Stop


class ScriptedInbox:
    """An inbox whose messages come one by one; before a pause nothing comes for a while."""

    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.is_pause = False

    def empty(self) -> bool:
        return not self.script or self.is_pause or self.script[0] == "pause"

    def get(self, timeout: float | None = None) -> Any:
        message, self.is_pause = self.script.pop(0), False
        if message != "pause":
            return message
        assert timeout, "it would wait forever"
        self.is_pause = True
        raise queue.Empty


class IdleWorker:
    """A worker without requests. num_measured: how often costs were measured."""

    has_work = False

    def __init__(self) -> None:
        self.num_measured = 0
        self.live: list[Any] = []
        self.queue = type("Queue", (), {"waiting": []})()

    def measure_costs(self) -> bool:
        self.num_measured += 1
        return False

    def step(self) -> None:
        """Do nothing."""


def run(script: list[str]) -> list[int]:
    """Run a loop; return how often costs had been measured at each message."""
    seen: list[int] = []
    inbox, worker = ScriptedInbox([]), IdleWorker()
    for event in script:
        inbox.script.append(event if event == "pause" else _noting(worker, seen))
    inbox.script.append(Stop())
    grammars = SimpleNamespace(prepare=lambda: False)
    Loop(worker, inbox, Lifecycle(1), None, grammars).run()  # type: ignore[arg-type]
    return seen


def _noting(worker: IdleWorker, seen: list[int]) -> Call:
    class Nobody:
        def set_result(self, _: object) -> None: ...

    return Call(lambda: seen.append(worker.num_measured), Nobody())  # type: ignore[arg-type]


def test_costs_are_measured_in_pauses_and_not_between_requests_that_follow_each_other() -> None:
    assert run(["request", "request", "pause", "request", "request"]) == [0, 0, 1, 1]
