"""The server as curl sees it."""

import json
import shutil
import subprocess

import pytest

from tests.server.openai_shapes import assert_error, stream_data, valid_chat

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

JSON = ("-H", "Content-Type: application/json")


def _curl(*arguments, stdin=None):
    command = ["curl", "--silent", "--show-error", "--max-time", "60", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout.decode()


def test_a_chat(server_url):
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20})
    valid_chat(json.loads(_curl(f"{server_url}/v1/chat/completions", *JSON, "-d", body)))


def test_a_stream_ends_with_done(server_url):
    body = json.dumps({"prompt": "The", "max_tokens": 5, "stream": True})
    assert stream_data(_curl("-N", f"{server_url}/v1/completions", *JSON, "-d", body))[-1] == "[DONE]"


def test_the_headers_of_a_stream(server_url):
    body = json.dumps({"prompt": "The", "max_tokens": 5, "stream": True})
    headers = _curl("-D", "-", "-o", "/dev/null", f"{server_url}/v1/completions", *JSON, "-d", body).lower()
    assert headers.startswith("http/1.1 200")
    assert "x-accel-buffering: no" in headers
    assert "cache-control: no-cache" in headers
    assert "x-request-id: req-" in headers


def test_health_and_greeting(server_url):
    assert json.loads(_curl(f"{server_url}/health"))["status"] == "ready"
    assert "POST /v1/chat/completions" in json.loads(_curl(server_url))["endpoints"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", "400", "invalid_json"),
        (b'{"prompt": "\xff"}', "400", "invalid_utf8"),
        (b'{"a":' * 100_000, "400", "json_too_deep"),
        (b'{"prompt": "' + b"x" * 100_000_000 + b'"}', "413", "body_too_large"),
    ],
    ids=["no JSON", "no UTF-8", "nested", "100 MB"],
)
def test_a_bad_body(server_url, body, status, code):
    answer = _curl(
        "-w", "\n%{http_code}", f"{server_url}/v1/completions", *JSON, "--data-binary", "@-", stdin=body
    )
    text, told = answer.rsplit("\n", 1)
    assert told == status
    assert_error(json.loads(text), None, code)


def test_a_body_sent_in_chunks_is_limited_too(server_url):
    body = b"x" * 40_000_000
    header = ("-H", "Transfer-Encoding: chunked")
    answer = _curl(f"{server_url}/v1/completions", *JSON, *header, "--data-binary", "@-", stdin=body)
    assert_error(json.loads(answer), None, "body_too_large")
