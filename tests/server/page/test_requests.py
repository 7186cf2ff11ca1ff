"""GET /v1/requests and /v1/connect, which the page shows."""

import pytest

from reprise.config.agents.config_file import render
from reprise.config.agents.known import AGENTS, FIRST_PROMPT_TOKENS, ServedModel, explain_context
from reprise.server.metrics.registry import MAX_REQUESTS
from tests.server.fake_engine import fail_midway
from tests.server.openai_shapes import assert_error

CHAT = "/v1/chat/completions"
SECRET = "a text that must not be repeated"


def body(**fields):
    return {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5} | fields


async def recent(client):
    return (await client.get("/v1/requests")).json()["data"]


async def test_requests_are_listed_with_counts_and_without_texts(client, engine):
    assert await recent(client) == []
    await client.get("/health")
    await client.post(CHAT, json=body(), headers={"x-request-id": "one"})
    engine.script = fail_midway
    await client.post(CHAT, json=body(), headers={"x-request-id": "two"})
    await client.post(CHAT, json=body(temperature=9))
    refused, failed, answered = await recent(client)
    assert (refused["status"], refused["error"]) == (400, "invalid_value")
    assert (failed["id"], failed["status"]) == ("two", 500)
    assert answered["id"] == "one"
    assert answered["endpoint"] == f"POST {CHAT}"
    assert (answered["status"], answered["finish_reason"], answered["num_completion_tokens"]) == (
        200,
        "length",
        5,
    )
    assert answered["num_cached_tokens"] == 3
    assert answered["total_ms"] > 0
    assert SECRET not in str([refused, failed, answered])


async def test_only_the_last_requests_are_kept(client):
    for at in range(MAX_REQUESTS + 3):
        await client.post(CHAT, json={}, headers={"x-request-id": str(at)})
    found = await recent(client)
    assert [one["id"] for one in found] == [str(at) for at in range(MAX_REQUESTS + 2, 2, -1)]


@pytest.mark.parametrize("model", [None, "alias"])
async def test_agents_get_what_the_command_prints(client, engine, model):
    found = (await client.get("/v1/connect", params={"model": model} if model else None)).json()
    served = ServedModel(
        "http://reprise", model or "org/fake-model", engine.info.context_tokens, can_call=True
    )
    assert found["url"] == "http://reprise/v1"
    assert found["model"] == served.name
    assert [one["name"] for one in found["agents"]] == list(AGENTS)
    for one in found["agents"]:
        expected = AGENTS[one["name"]](served)
        assert one["files"] == [
            {"path": f"~/{file.path}", "text": render(file, None)} for file in expected.files
        ]
        # Its context is smaller than the first prompt of these.
        warned = [explain_context(one["name"], served)] if one["name"] in FIRST_PROMPT_TOKENS else []
        assert one["notes"] == [*expected.notes, *warned]


async def test_the_key_of_a_client_is_not_repeated(client):
    response = await client.get("/v1/connect", headers={"authorization": "Bearer my-secret"})
    assert "my-secret" not in response.text
    assert "YOUR-API-KEY" in response.text


async def test_an_unknown_model_is_a_404(client):
    response = await client.get("/v1/connect", params={"model": "gpt-4o"})
    assert response.status_code == 404
    assert_error(response.json(), "model", "model_not_found")
