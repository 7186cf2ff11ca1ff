"""The model under its names, and the sampling that it recommends."""

import re
from dataclasses import replace

import anthropic
import httpx
import pytest
from anthropic.types import ModelInfo

from reprise.config.settings import Settings
from reprise.engine.interface.models import SamplingDefaults
from reprise.engine.text.markers import Markers
from reprise.server.app import create_app
from tests.server.fake_engine import CALLING, CONTEXT_TOKENS
from tests.server.openai_shapes import assert_error, valid_model


async def test_the_list_has_the_model_and_its_aliases(client):
    body = (await client.get("/v1/models")).json()
    assert [valid_model(card).id for card in body["data"]] == ["org/fake-model", "alias"]
    assert body["object"] == "list"
    assert all("owned_by" in card and "created" in card for card in body["data"])


@pytest.mark.parametrize("path", ["org/fake-model", "org%2Ffake-model", "alias"])
async def test_a_model_is_found_by_each_of_its_names(client, path):
    assert valid_model((await client.get(f"/v1/models/{path}")).json()).object == "model"


ANTHROPIC = {"anthropic-version": "2023-06-01"}


async def test_anthropic_s_clients_get_the_list_in_their_shape(client):
    listed = (await client.get("/v1/models?limit=1000", headers=ANTHROPIC)).json()
    assert {key: listed[key] for key in ("first_id", "last_id", "has_more")} == {
        "first_id": "org/fake-model",
        "last_id": "alias",
        "has_more": False,
    }
    for given in [*listed["data"], (await client.get("/v1/models/alias", headers=ANTHROPIC)).json()]:
        model = ModelInfo.model_validate(given)
        assert (model.type, model.display_name) == ("model", model.id)
        assert model.max_input_tokens == model.max_tokens == CONTEXT_TOKENS
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", given["created_at"])
    assert "context_length" in (await client.get("/v1/models")).json()["data"][0]


def test_anthropic_s_package_lists_and_finds_models(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as sdk:
        assert [model.id for model in sdk.models.list()] == ["org/fake-model", "alias"]
        assert sdk.models.retrieve("alias").display_name == "alias"


@pytest.mark.parametrize(
    ("markers", "name"),
    [(CALLING, "json_tools"), (replace(CALLING, is_generic=True), "generic"), (Markers(), None)],
)
async def test_a_model_names_its_format_of_tool_calls(client, engine, markers, name):
    engine.tokenizer.markers = markers
    card = (await client.get("/v1/models/alias")).json()
    assert (card["tools"], card["tool_format"]) == (name is not None, name)


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
        assert message.endswith("`reprise connect AGENT` gives a coding agent the right name.")


async def test_other_unknown_models_have_no_word_about_agents(client):
    assert "reprise connect" not in (await client.get("/v1/models/qwen")).text


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


async def test_health_says_that_the_machine_lacks_memory(client, engine):
    assert "memory_pressure" not in (await client.get("/health")).json()
    engine.memory_pressure = "warning"
    assert (await client.get("/health")).json()["memory_pressure"] == "warning"


async def test_a_head_request_finds_the_server(client):
    response = await client.head("/")
    assert response.status_code == 200
    assert int(response.headers["content-length"]) > 0


async def test_the_greeting_names_only_endpoints_that_exist(client):
    endpoints = (await client.get("/")).json()["endpoints"]
    for endpoint in endpoints:
        method, path = endpoint.split()
        path = re.sub("{(name|digest)}", "alias", path).replace("{id}", "resp_unknown")
        response = await client.request(method, path, json={} if method == "POST" else None)
        known = (200, 404) if "resp_unknown" in path else (200, 400, 501)
        assert response.status_code in known, endpoint
        assert "unknown_url" not in response.text


async def test_a_card_says_what_the_model_can_do(client, engine):
    engine.info = replace(engine.info, sampling_defaults=SamplingDefaults(temperature=0.6, top_k=20))
    card = (await client.get("/v1/models/alias")).json()
    assert card["context_length"] == card["max_model_len"] == card["meta"]["n_ctx"] == CONTEXT_TOKENS
    assert card["meta"]["n_params"] == 8_100_000
    assert card["modalities"] == {"input": ["text"], "output": ["text"]}
    assert (card["tools"], card["reasoning"]) == (True, False)
    assert card["sampling_defaults"] == {"temperature": 0.6, "top_k": 20}
    assert card["thinking_switches"] == []


ASKED = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_what_a_request_leaves_out_is_as_the_model_recommends(client, engine, path, body):
    engine.info = replace(
        engine.info, sampling_defaults=SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1)
    )
    await client.post(path, json=body)
    sampling = engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 0.9, 20, 0.1)
    await client.post(path, json=body | {"temperature": 1.0, "top_p": None})
    assert (engine.requests[-1].sampling.temperature, engine.requests[-1].sampling.top_p) == (1.0, 0.9)


async def test_openai_s_defaults_can_be_chosen(engine):
    engine.info = replace(engine.info, sampling_defaults=SamplingDefaults(temperature=0.6))
    app = create_app(engine, Settings(sampling_defaults="openai"))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as http:
        await http.post("http://localhost/v1/completions", json={"prompt": "a"})
        card = (await http.get("http://localhost/v1/models")).json()["data"][0]
    assert engine.requests[-1].sampling.temperature == 1.0
    assert card["sampling_defaults"] == {}
