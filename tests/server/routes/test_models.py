import pytest
from openai.pagination import SyncPage
from openai.types import Model

from tests.server.openai_shapes import assert_error, valid, valid_model


async def test_the_list_has_the_model_and_its_aliases(client):
    body = (await client.get("/v1/models")).json()
    assert [model.id for model in valid(SyncPage[Model], body).data] == ["org/fake-model", "alias"]
    assert body["object"] == "list"
    assert all("owned_by" in card and "created" in card for card in body["data"])


@pytest.mark.parametrize("path", ["org/fake-model", "org%2Ffake-model", "alias"])
async def test_a_model_is_found_by_each_of_its_names(client, path):
    assert valid_model((await client.get(f"/v1/models/{path}")).json()).object == "model"


async def test_an_unknown_model_is_a_404_that_says_what_is_served(client):
    responses = [
        await client.get("/v1/models/gpt-4o"),
        await client.post("/v1/completions", json={"prompt": "a", "model": "gpt-4o"}),
        await client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], "model": "gpt-4o"}
        ),
    ]
    for response in responses:
        assert response.status_code == 404
        message = assert_error(response.json(), "model", "model_not_found")
        assert "'gpt-4o'" in message
        assert "'org/fake-model' or 'alias'" in message


@pytest.mark.parametrize(
    ("state", "fault", "status"),
    [
        ("ready", None, 200),
        ("loading", None, 503),
        ("draining", None, 503),
        ("ready", "RuntimeError: x", 503),
    ],
)
async def test_health_says_whether_requests_are_accepted(client, engine, state, fault, status):
    engine.state, engine.fault = state, fault
    response = await client.get("/health")
    assert response.status_code == status
    body = response.json()
    assert body["status"] == ("dead" if fault else state)
    assert body.get("reason") == fault
    completion = await client.post("/v1/completions", json={"prompt": "a"})
    assert completion.status_code == status


async def test_the_greeting_names_only_endpoints_that_exist(client):
    endpoints = (await client.get("/")).json()["endpoints"]
    for endpoint in endpoints:
        method, path = endpoint.split()
        path = path.replace("{name}", "alias").replace("{id}", "resp_unknown")
        response = await client.request(method, path, json={} if method == "POST" else None)
        known = (200, 404) if "resp_unknown" in path else (200, 400)
        assert response.status_code in known, endpoint
        assert "unknown_url" not in response.text
