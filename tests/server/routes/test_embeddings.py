"""/v1/embeddings answers 501 and says what to do instead."""

from dataclasses import replace

import openai
import pytest

from tests.server.openai_shapes import assert_error

PATH = "/v1/embeddings"


@pytest.fixture
def settings(settings):
    return replace(settings, unknown_fields="refuse")


@pytest.mark.parametrize("given", ["a", ["a", "b"], [1, 2], [[1, 2], [3]]], ids=str)
async def test_every_valid_body_is_a_501(client, engine, given):
    response = await client.post(PATH, json={"input": given, "model": "any", "encoding_format": "base64"})
    assert response.status_code == 501
    assert "This server generates text" in assert_error(response.json(), code="not_implemented")
    assert not engine.requests


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": [[]]}, "input", "invalid_type"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "colour": 1}, "colour", "unknown_parameter"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_input_is_a_400_first(client, body, param, code):
    response = await client.post(PATH, json=body)
    assert response.status_code == 400
    assert_error(response.json(), param, code)


async def test_another_method_is_not_allowed(client):
    response = await client.get(PATH)
    assert response.status_code == 405
    assert_error(response.json(), code="method_not_allowed")


def test_the_sdk_raises_its_error_and_does_not_try_again(url):
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.embeddings.create(model="any", input="a")
    assert caught.value.status_code == 501
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
