"""Fixtures that start engines with tiny random models."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from reprise.config.settings import Settings
from reprise.engine.engine import Engine
from reprise.engine.generating.setup import flat_costs
from reprise.engine.memory import prefill_plan
from reprise.engine.memory.prefill_plan import MAX_STALL_MS
from reprise.engine.model.loading import Load
from reprise.engine.pool.residency import FindHead, Makers
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.proposers import MakeSources
from tests.engine.support import make_loaded
from tests.mlx_vlm import mlx_vlm  # noqa: F401 - a fixture

StartEngine = Callable[..., Engine]


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    """Return a function that starts an engine with a random model; all engines are stopped at the end."""
    engines: list[Engine] = []

    def start(
        name: str = "llama",
        wrap: Callable[[Any], Any] | None = None,
        on_death: Callable[[str], None] | None = None,
        make_sources: MakeSources | None = None,
        load_draft: Load | None = None,
        costs: StepCosts | None = None,
        load: Load | None = None,
        find_head: FindHead | None = None,
        max_stall_ms: float = MAX_STALL_MS,
        **settings: Any,
    ) -> Engine:
        make = load or (lambda _: make_loaded(name, wrap))
        makers = Makers(make, make_sources, load_draft, find_head, costs or flat_costs())
        engine = Engine(Settings(**settings), makers)
        engine.on_death = on_death
        with patch.object(prefill_plan, "MAX_STALL_MS", max_stall_ms):
            engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.stop(drain_s=0)
