"""/v1/ngram-mod: inspect, empty, save and load the n-gram table."""

import pytest

from tests.server.openai_shapes import assert_error

PATH = "/v1/ngram-mod"


async def test_a_get_returns_the_table_s_counts(client, engine):
    response = await client.get(PATH)
    assert response.status_code == 200
    assert response.json() == engine.memory


@pytest.mark.parametrize("action", ["reset", "save", "load"])
async def test_an_action_runs_on_the_engine_and_returns_its_result(client, engine, action):
    response = await client.post(f"{PATH}/{action}")
    assert response.status_code == 200, response.text
    assert engine.memory_calls == [action]
    assert response.json()["status"]
    assert response.json()["table"] == engine.memory


async def test_a_reset_shows_an_empty_table(client):
    assert (await client.post(f"{PATH}/reset")).json()["table"]["occupied"] == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", PATH), *(("POST", f"{PATH}/{action}") for action in ("reset", "save", "load"))],
)
async def test_without_a_table_every_action_is_a_409(client, engine, method, path):
    engine.memory = None
    response = await client.request(method, path)
    assert response.status_code == 409
    assert assert_error(response.json(), None, "shared_memory_error") == "There is no table."
    assert engine.memory_calls == []


@pytest.mark.parametrize("action", ["save", "load"])
async def test_a_missing_or_invalid_file_is_a_409(client, engine, action):
    engine.memory_fault = "no file is set; start with --ngram-table-file PATH"
    response = await client.post(f"{PATH}/{action}")
    assert response.status_code == 409
    assert "--ngram-table-file" in assert_error(response.json(), None, "shared_memory_error")


@pytest.mark.parametrize("action", ["save", "load"])
async def test_no_path_is_taken_from_a_request(client, engine, action):
    response = await client.post(f"{PATH}/{action}?file=/etc/passwd", json={"file": "/etc/passwd"})
    assert response.status_code == 200
    assert "passwd" not in response.text
    assert engine.memory_calls == [action]


@pytest.mark.parametrize("action", ["reset", "save", "load"])
async def test_web_pages_of_other_origins_are_refused(client, engine, action):
    for origin in ("http://evil.example", "null", "http://reprise.evil.example"):
        response = await client.post(f"{PATH}/{action}", headers={"Origin": origin})
        assert response.status_code == 403
        assert_error(response.json(), None, "foreign_origin")
    assert engine.memory_calls == []
    own = await client.post(f"{PATH}/{action}", headers={"Origin": "http://reprise"})
    assert own.status_code == 200


@pytest.mark.parametrize(("state", "fault"), [("draining", None), ("ready", "RuntimeError: x")])
async def test_an_engine_that_accepts_no_requests_is_a_503(client, engine, state, fault):
    engine.state, engine.fault = state, fault
    for method, path in (("GET", PATH), ("POST", f"{PATH}/reset")):
        assert (await client.request(method, path)).status_code == 503
