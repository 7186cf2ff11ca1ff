"""No request, whether it fits the OpenAPI document or not, causes a server error."""

from dataclasses import replace

import pytest

from reprise.config.settings import Settings
from reprise.server.app import create_app
from tests.server.fake_engine import FakeEngine
from tests.server.requests.any_request import GOOD, OPERATIONS, send_many
from tests.server.served import served


@pytest.fixture(scope="module")
def any_engine():
    engine = FakeEngine()
    # Other models refuse the fields of windowed decoding.
    engine.info = replace(engine.info, mask_token_id=7, can_decode_windows=True)
    return engine


@pytest.fixture(scope="module")
def any_url(any_engine):
    """A real server with an engine that echoes prompts, shared by all tests of this module."""
    settings = Settings(
        served_model_name=("reprise-demo",), wedlm_decoding="streaming", wedlm_window_size=2**31 - 1
    )
    with served(create_app(any_engine, settings)) as address:
        yield address
    assert any_engine.num_live == 0


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_causes_a_server_error(operation, any_url):
    send_many(operation, any_url, 14, max_tokens=4)


def test_many_of_those_requests_reach_the_engine(any_engine):
    """Otherwise only the refusal of requests would have been tested."""
    assert len(any_engine.requests) >= 2 * len(GOOD)
