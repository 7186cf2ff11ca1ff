"""Requests drawn from our own OpenAPI document, against the real server and the bundled model."""

import httpx

from tests.server.any_request import SCHEMA, assert_no_fault, drawn, simplify


@SCHEMA.parametrize()
@drawn(8)
def test_no_request_brings_out_a_fault(case, server_url):
    simplify(case, max_tokens=3)
    assert_no_fault(case, server_url)


def test_the_server_is_well_afterwards(server_url):
    assert httpx.get(f"{server_url}/health").json()["status"] == "ready"
    metrics = httpx.get(f"{server_url}/metrics").text
    assert "reprise_failed_steps_total 0.0" in metrics
    assert 'end="engine"' not in metrics
