"""Large bodies are parsed off the event loop; bodies with too many values are not parsed at all."""

import json
import threading
from types import SimpleNamespace
from typing import Annotated

import pytest
from fastapi import Request
from pydantic import AfterValidator

from reprise.config.settings import Settings
from reprise.server.errors import BadRequestError
from reprise.server.http import body as http_body
from reprise.server.http.body import read_body
from reprise.server.http.executor import SMALL_BYTES, Executor
from reprise.server.logs import RequestRecord, attach_record
from reprise.server.requests.fields import RequestModel
from reprise.server.requests.json_body import MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES, check_values
from tests.server.openai_shapes import assert_error

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def settings(monkeypatch):
    monkeypatch.setattr(http_body, "MAX_BODY_BYTES", 8 * 2**20)
    return Settings()


class Witness(RequestModel):
    """Records the thread on which it was validated."""

    text: Annotated[str, AfterValidator(lambda _: threading.current_thread().name)]


async def _reader_of(num_bytes):
    body = json.dumps({"text": ""}).encode()
    body = body.replace(b'""', b'"' + b"a" * (num_bytes - len(body)) + b'"')
    assert len(body) == num_bytes

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    app = SimpleNamespace(
        state=SimpleNamespace(service=SimpleNamespace(settings=Settings(), executor=Executor()))
    )
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")], "app": app}
    attach_record(scope, RequestRecord("id", "unique", "POST /"))
    return (await read_body(Request(scope, receive), Witness)).text


async def test_a_large_body_is_parsed_on_a_thread_and_a_small_one_is_not():
    here = threading.current_thread().name
    assert await _reader_of(SMALL_BYTES) == here
    assert await _reader_of(SMALL_BYTES + 1) != here


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"1," * MAX_VALUES + b"1]}",
        b'{"prompt": [' + b"[]," * MAX_CONTAINERS + b"1]}",
        b'{"prompt": [' + b"{}," * MAX_CONTAINERS + b"1]}",
        b'{"prompt": [' + b'"",' * MAX_VALUES + b'""]}',
        b'{"prompt": [' + b'"\\\\",' * MAX_VALUES + b'""]}',
        b'{"prompt": [' + b'"\\"",' * MAX_VALUES + b'""]}',
        b'{"prompt": {' + b'"a":1,' * MAX_VALUES + b'"a":1}}',
    ],
    ids=["numbers", "arrays", "objects", "texts", "backslashes", "quotes", "pairs"],
)
async def test_too_many_values_are_refused_before_parsing(client, engine, body):
    response = await client.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 400
    assert str(MAX_VALUES) in assert_error(response.json(), None, "json_too_large")
    assert engine.requests == []


@pytest.mark.parametrize(
    "text", ["1," * 2_000_000, '{"a": [],' * 300_000, '\\",' * 700_000, "\\\\" * 2_000_000]
)
def test_brackets_and_commas_inside_strings_do_not_count(text):
    check_values(json.dumps({"prompt": text}).encode())


async def test_a_large_body_without_an_end_is_not_json(client):
    for body in (b'{"prompt": "' + b"1," * MAX_VALUES, b'{"prompt": [' + b'"text",' * 100_000):
        response = await client.post("/v1/completions", content=body, headers=JSON)
        assert_error(response.json(), None, "invalid_json")


def test_members_are_counted_too():
    with pytest.raises(BadRequestError):
        check_values(b"{" + b'"a":1,' * MAX_MEMBERS + b'"a":1}')
