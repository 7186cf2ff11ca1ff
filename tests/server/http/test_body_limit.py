import socket
from urllib.parse import urlsplit

import httpx

from tests.server.openai_shapes import assert_error

LIMIT = 100_000
PATH = "/v1/completions"
JSON = {"Content-Type": "application/json"}


def _body(num_bytes):
    return b'{"prompt": "a", "user": "' + b"x" * (num_bytes - 27) + b'"}'


def test_a_body_as_large_as_the_limit_is_read(url):
    assert httpx.post(url + PATH, content=_body(LIMIT), headers=JSON).status_code == 200


def test_a_100_mb_body_is_a_413_that_names_the_limit(url, engine):
    response = httpx.post(url + PATH, content=_body(100 * 2**20), timeout=60)
    assert response.status_code == 413
    message = assert_error(response.json(), None, "body_too_large")
    assert "100000 bytes" in message
    assert "Send a smaller body" in message
    assert engine.requests == []


def test_a_body_without_a_declared_length_is_limited_too(url, engine):
    response = httpx.post(url + PATH, content=(b"x" * 10_000 for _ in range(2000)), timeout=60)
    assert response.status_code == 413
    assert_error(response.json(), None, "body_too_large")
    assert engine.requests == []


def test_a_client_that_expects_100_continue_gets_the_413_before_it_sends(url):
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=240) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: 100000000\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_an_invalid_declared_length_is_a_400(url):
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=240) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
