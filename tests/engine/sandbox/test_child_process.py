"""A process that does not answer, or died, costs one call; the next one has another."""

import signal
import threading

import psutil
import pytest

from reprise.engine.sandbox.child_process import CallError, ChildError, ChildProcess, Limits

CALL = {"text": "1", "schema": "{}"}


def make(wall_s=60.0):
    return ChildProcess("schemas", Limits(cpu_s=60.0, wall_s=wall_s, memory_bytes=2**31))


def newest_child():
    return max(psutil.Process().children(), key=lambda one: one.create_time())


def test_no_process_runs_before_the_first_call():
    before = len(psutil.Process().children())
    process = make()
    assert len(psutil.Process().children()) == before
    assert process.call(**CALL) == process.call(**CALL) == {"valid": True}
    assert len(psutil.Process().children()) == before + 1
    process.stop()


def test_a_process_that_does_not_reply_is_killed():
    process = make(wall_s=0.3)
    assert process.call(**CALL)
    child = newest_child()
    child.suspend()
    with pytest.raises(ChildError):
        process.call(**CALL)
    assert not child.is_running()
    process.stop()


def test_a_call_whose_process_the_machine_ended_is_made_once_more():
    process = make(wall_s=2.0)
    assert process.call(**CALL)
    newest_child().suspend()
    assert process.call_twice(**CALL) == {"valid": True}
    process.stop()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_would_recur_and_a_kill_would_not(end):
    process = make()
    assert process.call(**CALL)
    child = newest_child()
    child.suspend()
    # While the call waits for a reply.
    timer = threading.Timer(0.5, lambda: (child.send_signal(end), child.resume()))
    timer.start()
    with pytest.raises(CallError if end == signal.SIGSEGV else ChildError):
        process.call(**CALL)
    timer.join()
    process.stop()


def test_a_process_that_died_is_replaced():
    process = make()
    assert process.call(**CALL)
    child = newest_child()
    child.kill()
    child.wait()
    assert process.call(**CALL) == {"valid": True}
    process.stop()
