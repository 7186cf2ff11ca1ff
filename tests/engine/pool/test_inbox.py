"""Messages reach the thread that owns MLX, or are refused, also if another thread refuses them meanwhile."""

from concurrent.futures import Future
from typing import Any

import pytest

from reprise.engine.interface.errors import SharedTableError
from reprise.engine.interface.events import Failed
from reprise.engine.pool.model_engine import Call, Cancel, Inbox, Message, Submit

LOST = Failed("engine", "the engine has stopped: a rank is lost")


def test_messages_that_are_refused_while_one_is_handled_are_not_missed():
    inbox = Inbox(lambda: None)
    handled: list[Message] = []

    def handle(message: Message) -> None:
        handled.append(message)
        if len(handled) == 1:
            # As Engine.abort() does it, on another thread.
            inbox.refuse_all(LOST)
            inbox.put(Cancel("c"))

    inbox.put(Cancel("a"))
    inbox.put(Cancel("b"))
    inbox.take_all(handle)
    assert handled == [Cancel("a"), Cancel("c")]
    inbox.take_all(handle)
    assert len(handled) == 2


def test_the_message_that_the_thread_dies_of_is_refused():
    events: list[Any] = []
    request: Any = object()
    inbox = Inbox(lambda: None)
    inbox.put(Submit(request, events.append))
    inbox.put(Submit(request, events.append))

    def die(_: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inbox.take_all(die)
    inbox.refuse_all(LOST)
    assert events == [LOST, LOST]


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_was_refused_while_it_was_performed_raises_nothing(fails: bool):
    inbox = Inbox(lambda: None)
    outcome: Future[Any] = Future()

    def act() -> None:
        inbox.refuse_all(LOST)
        if fails:
            raise ValueError

    def handle(message: Message) -> None:
        assert isinstance(message, Call)
        message.perform()

    inbox.put(Call(act, outcome))
    inbox.take_all(handle)
    with pytest.raises(SharedTableError, match="a rank is lost"):
        outcome.result()


def test_a_call_that_was_performed_is_not_refused():
    outcome: Future[Any] = Future()
    inbox = Inbox(lambda: None)
    inbox.put(Call(lambda: 1, outcome))

    def handle(message: Message) -> None:
        assert isinstance(message, Call)
        message.perform()
        inbox.refuse_all(LOST)

    inbox.take_all(handle)
    assert outcome.result() == 1
