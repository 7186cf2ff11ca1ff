"""Refused requests get a Retry-After; prompts too large for memory get both sizes."""

from dataclasses import replace

import pytest

from reprise.engine.interface.models import MemoryLimit
from tests.server.fake_engine import CONTEXT_TOKENS, wait_first
from tests.server.openai_shapes import assert_error

BODY = {"prompt": "a"}


@pytest.mark.parametrize(("wait_s", "seconds"), [(0.01, "1"), (1.0, "1"), (7.2, "8"), (60.0, "60")])
@pytest.mark.parametrize(("refusal", "status"), [("queue_full", 429), ("draining", 503)])
async def test_retry_after_is_the_engines_estimate_in_whole_seconds(
    client, engine, refusal, status, wait_s, seconds
):
    engine.script, engine.refusal, engine.retry_after_s = wait_first, refusal, wait_s
    response = await client.post("/v1/completions", json=BODY | {"n": 2})
    assert response.status_code == status
    assert response.headers["retry-after"] == seconds


@pytest.mark.parametrize("state", ["loading", "draining", "stalled"])
async def test_retry_after_is_sent_while_the_engine_is_loading_draining_or_stalled(client, engine, state):
    engine.state, engine.retry_after_s = state, 9.5
    response = await client.post("/v1/completions", json=BODY)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "10"


async def test_the_error_for_a_prompt_too_large_for_memory_has_both_sizes(client, engine):
    limit = MemoryLimit(50 * 2**20, CONTEXT_TOKENS, 49 * 2**20, 2**14)
    engine.info = replace(engine.info, memory_limit=limit)
    response = await client.post("/v1/completions", json={"prompt": "x" * (CONTEXT_TOKENS + 640)})
    assert response.status_code == 400
    message = assert_error(response.json(), "prompt", "context_length_exceeded")
    assert "1640 tokens, which would take 59.0 MiB" in message
    assert "has 50.0 MiB for it, that is 1000 tokens" in message
    assert "--memory-bytes" in message
    fits = await client.post("/v1/completions", json={"prompt": "x" * (CONTEXT_TOKENS - 1)})
    assert fits.status_code == 200
