"""A client that sends its request slowly holds only its connection, and only for a while."""

import contextlib
import json
import re
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.http import body
from tests.server.fake_engine import says
from tests.server.openai_shapes import assert_error
from tests.server.served import served

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: 15\r\n\r\n"
BODY = b'{"prompt": "a"}'
WISH = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
"""As Java's client sends it."""
_VARYING = re.compile(
    rb'"(?:id|created|created_at|[a-z_]+_(?:ms|duration|per_second))":\s*(?:"[^"]*"|[0-9.e-]+)'
)


@pytest.fixture
def hasty_url(engine, monkeypatch):
    """A server that waits a quarter of a second for a request."""
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.25)
    with served(create_app(engine, Settings()), timeout_s=0.25) as address:
        yield address


@pytest.fixture
def connect():
    """Opens connections; closes them at the end of the test."""
    with contextlib.ExitStack() as opened:

        def to(url):
            address = (urlsplit(url).hostname, urlsplit(url).port)
            return opened.enter_context(socket.create_connection(address, timeout=240))

        yield to


def _read(connection):
    """Return everything received until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def _error(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, HEAD + b"X-A: b\r\n"])
def test_a_connection_with_unfinished_headers_is_closed(hasty_url, connect, sent):
    connection = connect(hasty_url)
    connection.sendall(sent)
    assert _read(connection) == b""


def test_unfinished_headers_of_a_later_request_close_the_connection_too(hasty_url, connect):
    connection = connect(hasty_url)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
    assert _read(connection) in (b"", b'{"status":"ready","running":0,"waiting":0}')


@pytest.mark.parametrize("sent", [HEAD + LENGTH, HEAD + LENGTH + BODY[:5]])
def test_an_unfinished_body_is_a_408(hasty_url, connect, engine, sent):
    connection = connect(hasty_url)
    connection.sendall(sent)
    answer = _read(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert "0.25 seconds" in assert_error(_error(answer), None, "body_timeout")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        (b"POST", b"/v1/completions", b'{"prompt": "a", "stream": true}'),
        (b"POST", b"/v1/completions", b'{"prompt": "a"}'),
        (b"POST", b"/api/generate", b'{"prompt": "a"}'),
        (b"GET", b"/v1/models", b""),
        (b"HEAD", b"/v1/models", b""),
        (b"GET", b"/nowhere", b""),
    ],
)
def test_http_1_0_has_no_chunks(url, engine, connect, method, path, body):
    """The body is that of HTTP/1.1, but for what is new in each, and ends with the connection."""
    # One piece: several may come in one event or in two.
    engine.script = says("One.")
    connection = connect(url)
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    connection.sendall(
        b"%s %s HTTP/1.0\r\nContent-Type: application/json\r\n" % (method, path) + length + body
    )
    head, _, answer = _read(connection).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    asked = httpx.request(method.decode(), url + path.decode(), content=body)
    assert _VARYING.sub(b"", answer) == _VARYING.sub(b"", asked.content)
    assert b"content-length" in head.lower() or b"stream" in head or b"ndjson" in head


def test_slow_clients_do_not_block_others_and_are_served_when_complete(url, connect):
    slow = [connect(url) for _ in range(50)]
    for connection in slow:
        connection.sendall(HEAD + LENGTH + BODY[:5])
    assert httpx.post(url + "/v1/completions", json={"prompt": "a"}).status_code == 200
    slow[0].sendall(BODY[5:])
    assert slow[0].recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not TLS\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"X-A: " + b"a" * 2**20,
    ],
    ids=["TLS", "no host", "two hosts", "negative", "two lengths", "a long header"],
)
def test_invalid_http_is_a_400(url, connect, sent):
    connection = connect(url)
    with contextlib.suppress(ConnectionError):
        connection.sendall(sent)
    with contextlib.suppress(ConnectionError):
        answer = _read(connection)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert_error(_error(answer), None, "invalid_http")
    assert httpx.get(url + "/health").status_code == 200


def test_a_wish_for_another_protocol_is_denied_and_the_request_answered(url, connect):
    connection = connect(url)
    for _ in range(2):
        connection.sendall(HEAD + WISH + LENGTH + BODY)
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + BODY[:5] + b"\r\na\r\n" + BODY[5:] + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("rest", [LENGTH + BODY, CHUNKED], ids=["length", "chunks"])
def test_a_wish_for_another_protocol_is_denied_however_it_is_sent(url, connect, rest):
    request = HEAD + WISH + rest
    ends = [request.index(b"Upgrade: "), request.index(b"grade: "), request.index(rest), len(request) - 9]
    for end in ends:
        connection = connect(url)
        connection.sendall(request[:end])
        # The server has read that by the time that it answers this.
        assert httpx.get(url + "/health").status_code == 200
        connection.sendall(request[end:] + request + b"GET /health HTTP/1.0\r\n" + WISH + b"\r\n")
        assert re.findall(rb"HTTP/1\.1 (\d+)", _read(connection)) == [b"200"] * 3


def test_headers_after_a_body_are_no_headers_of_the_request(url, connect):
    chunked = b"Transfer-Encoding: chunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\nX-Request-Id: two words\r\n\r\n"
    connection = connect(url)
    connection.sendall(HEAD + chunked)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


async def test_more_than_100_headers_are_a_431(client):
    headers = {f"x-{index}": "a" for index in range(101)}
    response = await client.get("/v1/models", headers=headers)
    assert response.status_code == 431
    assert "at most 100" in assert_error(response.json(), None, "too_many_headers")
