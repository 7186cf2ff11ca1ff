"""A process that does not answer, or died, costs one call; the next one has another."""

import psutil
import pytest

from reprise.engine.sandbox.child_process import ChildError, ChildProcess, Limits

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


def test_a_process_that_died_is_replaced():
    process = make()
    assert process.call(**CALL)
    child = newest_child()
    child.kill()
    child.wait()
    assert process.call(**CALL) == {"valid": True}
    process.stop()
