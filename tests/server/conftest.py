import gc
from dataclasses import replace

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.generation import answer
from reprise.server.http import body
from tests.server.fake_engine import FakeEngine
from tests.server.served import served


@pytest.fixture
def settings(monkeypatch):
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 100_000)
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 30.0)
    return Settings(served_model_name=("alias",))


@pytest.fixture
def engine():
    fake = FakeEngine()
    yield fake
    fake.release()


@pytest.fixture
def app(engine, settings):
    return create_app(engine, settings)


@pytest.fixture
async def client(app):
    """A client that calls the app without a network. For tests that need neither streams nor disconnects."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://reprise") as http,
    ):
        yield http


@pytest.fixture
async def strict_client(engine, settings):
    """A client of a server that refuses what has no effect instead of leaving it out."""
    app = create_app(engine, replace(settings, unknown_fields="refuse"))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://reprise") as http,
    ):
        yield http


@pytest.fixture
def url(app):
    """The URL of a real server."""
    with served(app) as address:
        yield address


@pytest.fixture
def what_is_loaded_stays():
    """What the tests have loaded is no part of a collection, as in the server."""
    gc.freeze()
