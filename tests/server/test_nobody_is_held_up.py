"""What one client sends holds the event loop for nobody else: its monitor counts no hold."""

import json
import re
import socket
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.http.connection_limits import MAX_PIPELINED, MAX_SMALL_CHUNKS
from reprise.server.metrics import loop_lag
from reprise.server.metrics.loop_lag import NOT_HELD
from reprise.server.requests.fields import MAX_FIELDS
from tests.holds import MOST_S
from tests.machine import allowed_s
from tests.server.fake_engine import says
from tests.server.openai_shapes import assert_error
from tests.server.served import served

pytestmark = pytest.mark.usefixtures("what_is_loaded_stays")

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
CUT = {"truncation": "auto", "max_output_tokens": 1}
JSON = {"Content-Type": "application/json"}
_HOLD = re.compile(r'reprise_event_loop_holds_total\{span="(\w+)"\} (\S+)')


@pytest.fixture
def settings():
    return Settings()


@pytest.fixture
def url(engine, settings, monkeypatch):
    # A slow machine needs longer for the same work.
    monkeypatch.setattr(loop_lag, "HELD_S", allowed_s(MOST_S))
    with served(create_app(engine, settings)) as address:
        yield address
        assert holds(address) == {}


def holds(url):
    """How often the loop was held, by the span."""
    found = _HOLD.findall(httpx.get(url + "/metrics", timeout=60).text)
    return {span: float(count) for span, count in found if span != NOT_HELD and float(count)}


def connected(url):
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60)


def test_a_body_in_one_byte_chunks_is_refused(url):
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connected(url) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        try:
            connection.sendall(b"1\r\na\r\n" * 10**6)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionError:
            # Closed while much was still to be read: the answer may be lost.
            return
    assert answer.startswith(b"HTTP/1.1 400 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert str(MAX_SMALL_CHUNKS) in assert_error(error, None, "invalid_http")


def test_a_body_in_many_chunks_that_are_not_small_is_read(url):
    body = json.dumps({"prompt": "a", "user": "x" * 2**20}).encode()
    chunks = (body[start : start + 100] for start in range(0, len(body), 100))
    assert httpx.post(url + COMPLETIONS, content=chunks, headers=JSON, timeout=60).status_code == 200


def test_requests_without_end_on_one_connection_are_refused(url):
    with connected(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000)
        answer = b""
        while b" 400 " not in answer and (read := connection.recv(65536)):
            answer += read
    assert str(MAX_PIPELINED).encode() in answer


@pytest.mark.parametrize("where", ["body", "options", "stream_options"])
def test_half_a_million_unknown_members_are_refused_before_an_error_is_made_for_each(url, where):
    members = ",".join(f'"key{number}":0' for number in range(500_000))
    inner = f"{{{members}}}"
    body = inner if where == "body" else f'{{"prompt":"a","{where}":{inner}}}'
    response = httpx.post(url + COMPLETIONS, content=body, headers=JSON, timeout=60)
    assert response.status_code == 400
    assert_error(response.json(), None, "json_too_large")


def test_a_body_has_at_most_a_thousand_fields(url):
    body = {f"key{number}": 0 for number in range(MAX_FIELDS + 1)}
    response = httpx.post(url + COMPLETIONS, json=body, timeout=60)
    assert f"at most {MAX_FIELDS}" in assert_error(response.json(), None, "invalid_value")


def _stored(url, items):
    """Store a response to the items; return the list of them."""
    answer = httpx.post(url + RESPONSES, json=CUT | {"input": items}, timeout=60)
    assert answer.status_code == 200, answer.text
    return httpx.get(f"{url}{RESPONSES}/{answer.json()['id']}/input_items", timeout=60).json()


def test_thousands_of_references_to_a_long_stored_response(url):
    items = [{"role": "user", "content": f"line {number} " + "x" * 100} for number in range(1000)]
    listed = _stored(url, items)
    assert listed["has_more"]
    references = [{"type": "item_reference", "id": listed["data"][0]["id"]}] * 4000
    counted = httpx.post(url + RESPONSES + "/input_tokens", json=CUT | {"input": references}, timeout=60)
    assert counted.status_code == 200, counted.text
    refused = httpx.post(url + RESPONSES, json={"input": references}, timeout=60)
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_references_to_more_than_a_body_may_have_are_refused(url):
    items = [{"role": "user", "content": "x" * 100_000}, {"role": "user", "content": "go on"}]
    item = _stored(url, items)["data"][-1]
    references = [{"type": "item_reference", "id": item["id"]}] * 4000
    answer = httpx.post(url + RESPONSES, json={"input": references}, timeout=60)
    assert answer.status_code == 400
    assert "Compact" in assert_error(answer.json(), "input", "invalid_value")


LONG = "a" * (24 * 2**20)
FUNCTION = {"type": "function", "name": "f", "description": LONG, "parameters": {"type": "object"}}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {f"key{n}": "a" * 300 for n in range(60_000)}}
ASKED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [CALL]}]
OLLAMA_CALL = {"function": {"name": "f", "arguments": CALL["input"]}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, {"input": "a", "stream": True, "instructions": LONG}),
        (RESPONSES, {"input": "a", "stream": True, "tools": [FUNCTION]}),
        (MESSAGES, {"max_tokens": 1, "messages": ASKED}),
        ("/api/chat", {"messages": [ASKED[0], {"role": "assistant", "tool_calls": [OLLAMA_CALL]}]}),
    ],
    ids=["instructions", "tools", "arguments", "Ollama's arguments"],
)
def test_long_parts_of_a_request_are_translated_and_repeated_beside_the_event_loop(url, engine, path, body):
    engine.info = replace(engine.info, context_tokens=10**6)
    engine.tokenizer.longest_token = 100
    engine.tokenizer.encode = engine.tokenizer.encode_answer = lambda _: [5]
    answer = httpx.post(url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < 10_000


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("unit", ['{"a": ', "[0,0],", " ", '"\\\\', "</tool_call>", '{"arguments": {}}, '])
def test_an_answer_that_is_one_long_tool_call_is_read_as_it_arrives(url, engine, unit, is_streamed):
    for head in ("<tool_call>", '<tool_call>{"name": "f", "arguments": {"a": [', "<tool_call>["):
        text = head + unit * (100_000 // len(unit)) + "</tool_call>"
        engine.script = says(*(text[at : at + 8] for at in range(0, len(text), 8)))
        asked = {"messages": [{"role": "user", "content": "a"}], "stream": is_streamed}
        asked["tools"] = [{"type": "function", "function": {"name": "f"}}]
        assert httpx.post(url + CHAT, json=asked, timeout=120).status_code == 200


def test_a_long_text_with_pieces_is_written_while_it_is_read(url, engine):
    engine.info = replace(engine.info, context_tokens=10**6)
    text = "ä" + "a" * 300_000
    body = {"content": text, "with_pieces": True, "return_token_strs": True}
    answer = httpx.post(url + "/tokenize", json=body, timeout=60).json()
    first, second, *rest = answer["tokens"]
    assert (first["piece"], second["piece"]) == ([0xC3], [0xA4])
    assert "".join(token["piece"] for token in rest) == text[1:]
    assert answer["token_strs"][2:] == list(text[1:])
    assert (answer["count"], answer["max_model_len"]) == (300_002, 10**6)


def test_who_does_not_read_is_left(engine):
    """Its connection is closed, and what it asked for is forgotten."""
    engine.info = replace(engine.info, context_tokens=10**6)
    body = json.dumps({"content": "a" * 300_000, "with_pieces": True}).encode()
    head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with (
        served(create_app(engine, Settings()), timeout_s=0.5) as url,
        connected(url) as connection,
    ):
        connection.sendall(head.encode() + body)
        while "reprise_requests_in_progress 2.0" in httpx.get(url + "/metrics", timeout=60).text:
            pass
        answer = b"".join(iter(lambda: connection.recv(2**20), b""))
    assert not answer.endswith(b"0\r\n\r\n")
