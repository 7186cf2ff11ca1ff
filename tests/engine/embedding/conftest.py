"""Pools with models that embed, and what they answer."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from reprise.config.settings import Settings
from reprise.engine.engine import Engine
from reprise.engine.interface.embeddings import Embedded, EmbeddingInput, EmbeddingRequest
from tests.engine.embedding.encoder_folders import minilm

WAIT_S = 120


class Asker:
    """Asks one model of a pool for vectors."""

    def __init__(self, pool: Engine, name: str) -> None:
        self.pool = pool
        self.use = pool.acquire(name).result(WAIT_S)
        self.engine = self.use.engine
        self._num_asked = 0

    def begin(self, inputs, dimensions=None) -> "Future":
        """Ask for vectors of token ids or inputs; the future gets the event."""
        self._num_asked += 1
        future: Future = Future()
        future.id = f"asked-{self._num_asked}"
        given = tuple(
            one if isinstance(one, EmbeddingInput) else EmbeddingInput(tuple(one)) for one in inputs
        )
        self.engine.embed(EmbeddingRequest(future.id, given, dimensions), future.set_result)
        return future

    def raw(self, inputs, dimensions=None) -> tuple[bytes, ...]:
        event = self.begin(inputs, dimensions).result(WAIT_S)
        assert isinstance(event, Embedded), event
        return event.vectors

    def ask(self, inputs, dimensions=None) -> list[np.ndarray]:
        return [np.frombuffer(vector, "<f4") for vector in self.raw(inputs, dimensions)]


@pytest.fixture
def pool_of() -> Iterator[Callable[..., Asker]]:
    """Starts a pool whose first model is in a folder; returns what asks it."""
    pools = []

    def start(folder: Path, **settings: object) -> Asker:
        pool = Engine(Settings(model=str(folder), keeps_costs=False, **settings))
        pool.start()
        pools.append(pool)
        return Asker(pool, folder.name)

    yield start
    for pool in pools:
        pool.stop(0)


@pytest.fixture(scope="package")
def minilm_asker() -> Iterator[Asker]:
    pool = Engine(Settings(embedding_model=str(minilm()), keeps_costs=False))
    pool.start()
    yield Asker(pool, "model")
    pool.stop(0)
