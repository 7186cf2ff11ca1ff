"""Bodies of /v1/embeddings and /v1/rerank are checked; a model that generates says so and the way out."""

from dataclasses import replace

import openai
import pytest

from reprise.server.generation.embeddings import numbers_of
from tests.server.openai_shapes import assert_error

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
RANKED = {"query": "a", "documents": ["b"]}


@pytest.fixture
def settings(settings):
    return replace(settings, unknown_fields="refuse")


@pytest.mark.parametrize("given", ["a", ["a", "b"], [1, 2], [[1, 2], [3]], ["a", [3]]], ids=str)
async def test_a_model_that_generates_says_so_and_the_way_out(client, engine, given):
    response = await client.post(EMBEDDINGS, json={"input": given, "model": "any"})
    assert response.status_code == 400
    said = assert_error(response.json(), "model", "wrong_kind_of_model")
    assert "generates text" in said
    assert "--embedding-model" in said
    assert not engine.requests


@pytest.mark.parametrize("path", [RERANK, "/rerank", "/v2/rerank"])
async def test_it_ranks_nothing_either(client, path):
    response = await client.post(path, json=RANKED)
    assert response.status_code == 400
    assert "--rerank-model" in assert_error(response.json(), "model", "wrong_kind_of_model")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input[1]", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": [[]]}, "input[0]", "invalid_value"),
        ({"input": ["a", 5]}, "input[1]", "invalid_type"),
        ({"input": ["a", ["b"]]}, "input[1]", "invalid_type"),
        ({"input": ["a", None]}, "input[1]", "invalid_type"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "encoding_format": "ubinary"}, "encoding_format", "invalid_value"),
        ({"input": "a", "truncate": "MIDDLE"}, "truncate", "invalid_value"),
        ({"input": "a", "truncate": 1}, "truncate", "invalid_value"),
        ({"input": "a", "input_type": "song"}, "input_type", "invalid_value"),
        ({"input": "a", "colour": 1}, "colour", "unknown_parameter"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_input_is_a_400_that_names_the_item(client, body, param, code):
    response = await client.post(EMBEDDINGS, json=body)
    assert response.status_code == 400
    assert_error(response.json(), param, code)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"documents": ["a"]}, "query", "missing_required_parameter"),
        (RANKED | {"query": ""}, "query", "invalid_value"),
        (RANKED | {"documents": []}, "documents", "invalid_value"),
        (RANKED | {"documents": "a"}, "documents", "invalid_type"),
        (RANKED | {"documents": ["a", ""]}, "documents[1]", "invalid_value"),
        (RANKED | {"documents": ["a", {"title": "b"}]}, "documents[1]", "invalid_type"),
        (RANKED | {"documents": ["a"] * 2049}, "documents", "invalid_value"),
        (RANKED | {"top_n": 0}, "top_n", "invalid_value"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_documents_are_a_400_that_names_them(client, body, param, code):
    response = await client.post(RERANK, json=body)
    assert response.status_code == 400
    assert_error(response.json(), param, code)


async def test_another_method_is_not_allowed(client):
    response = await client.get(EMBEDDINGS)
    assert response.status_code == 405
    assert_error(response.json(), code="method_not_allowed")


def test_the_sdk_raises_its_error_and_does_not_try_again(url):
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.embeddings.create(model="any", input="a")
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_numbers_are_little_endian_on_every_machine():
    assert numbers_of(b"\x00\x00\x80\x3f\x00\x00\x00\xc0") == [1.0, -2.0]
