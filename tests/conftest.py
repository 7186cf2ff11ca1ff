"""Before anything is imported: nothing that a test measures goes into the user's cache, no test is timed."""

import gc
import logging
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings

from tests.holds import HOLDS, summary

# A test that is slow on a busy machine has not failed.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="reprise-tests-")

UNTIL = float(os.environ.get("TESTS_UNTIL", "inf"))
"""No test begins later, in seconds of Unix time: CI has a limit. The summary counts what is left out."""

LONGEST = (
    "end_to_end/trouble/test_adversity.py",
    # Not of end_to_end, so that only one process at a time measures what steps cost.
    "engine/speculative/test_drafting.py",
    "end_to_end/trouble/test_soak.py",
    "engine/memory/test_budget.py",
    "engine/kv_cache/prefix_cache/test_trie.py",
    "bench/test_verify.py",
    "end_to_end/trouble/test_leaving.py",
    "engine/faults/test_stations.py",
    "bench/test_decode.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    if time.time() > UNTIL:
        pytest.skip("the time for tests is over (TESTS_UNTIL)")


def pytest_terminal_summary(terminalreporter):
    if said := summary():
        terminalreporter.write_line(said)


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        session.config.add_cleanup(lambda: HOLDS.unlink(missing_ok=True))


@pytest.fixture(autouse=True)
def _logs_of_its_own():
    """Let a test set up the log for itself: a handler that stays would write to a stream that is closed."""
    before = {one: (one.handlers[:], one.level) for one in _loggers()}
    yield
    for one in _loggers():
        handlers, level = before.get(one, ([], one.level))
        if one.handlers != handlers:
            one.handlers[:] = handlers
        if one.level != level:
            one.setLevel(level)


@pytest.fixture(autouse=True, scope="session")
def _no_memory_pressure():
    """What other programs take must not change what is cached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reprise.engine.memory.pressure.read_level", lambda: "none")
        yield


def _loggers():
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(one for one in known if isinstance(one, logging.Logger))]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Some 600,000 objects, that stay: the collections of a whole run would look at them for minutes.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    # The longest ones begin first, so that no process waits for another one's at the end.
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


@pytest.fixture(scope="module")
def chrome():
    """Start one browser for all tests of a module."""
    # Imported here, as most processes need none.
    from chromium import browser, find_browser

    if find_browser() is None:
        reason = "no Chromium or Chrome is installed here"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with browser() as started:
        yield started
