"""Engines over tiny random models."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from config.settings import Settings
from engine.engine import Engine
from tests.engine.support import make_loaded

StartEngine = Callable[..., Engine]


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    """Start engines over random models; all are stopped at the end."""
    engines: list[Engine] = []

    def start(
        name: str = "llama",
        wrap: Callable[[Any], Any] = lambda model: model,
        on_death: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> Engine:
        engine = Engine(Settings(**settings), lambda _: make_loaded(name, wrap), on_death)
        engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.stop(drain_s=0)
