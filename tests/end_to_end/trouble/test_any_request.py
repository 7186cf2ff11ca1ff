"""Requests drawn from our own OpenAPI document, against the real server and the bundled model."""

import httpx
import pytest

from tests.server.requests.any_request import OPERATIONS, send_many


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_brings_out_a_fault(operation, server_url):
    send_many(operation, server_url, 6, max_tokens=3)


def test_the_server_is_well_afterwards(server_url):
    assert httpx.get(f"{server_url}/health").json()["status"] == "ready"
    metrics = httpx.get(f"{server_url}/metrics").text
    assert "reprise_failed_steps_total 0.0" in metrics
    assert 'end="engine"' not in metrics
