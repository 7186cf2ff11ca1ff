"""More connections than files may be open: everyone can still connect, and the log stays short."""

import contextlib
import json
import resource
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.end_to_end.conftest import serving

NUM_FILES = 2048
"""The limit of open files that mlx-lm sets."""
ASK = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Hello!"}],
    "max_tokens": 8,
    "seed": 1,
    "stream": True,
}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"


@pytest.fixture(scope="module")
def server(server_folder):
    with serving(server_folder) as (url, printed):
        yield url, printed


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Let this process have as many connections as the server."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * NUM_FILES, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connect(url: str, head: bytes = b"") -> socket.socket:
    """Return a connection on which nothing more than a head is sent."""
    address = urlsplit(url)
    made = socket.create_connection((address.hostname, address.port), 60)
    with contextlib.suppress(OSError):
        made.sendall(head)
    return made


def said(http: httpx.Client) -> str:
    lines = http.post("/v1/chat/completions", json=ASK).text.split("data: ")[1:-1]
    return "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)


def test_idle_connections_make_room_for_new_ones(server):
    url, printed = server
    with httpx.Client(base_url=url, timeout=60) as first:
        expected = said(first)
        begin = len(printed)
        with many_files(), contextlib.ExitStack() as stack:
            for _ in range(NUM_FILES + 2):
                stack.enter_context(connect(url))
            for _ in range(3):
                with httpx.Client(base_url=url, timeout=60) as other:
                    assert other.get("/health").status_code == 200
                    assert said(other) == expected
        # How long the event loop was held depends on the machine.
        logged = [line for line in printed[begin:] if "200" not in line and "was held" not in line]
    assert len([line for line in logged if "connections are open" in line]) == 1
    assert len(logged) == 1, "".join(logged[:40])


def test_requests_beyond_the_limit_are_told_so_and_served_later(server):
    url, _ = server
    with many_files(), contextlib.ExitStack() as stack:
        for _ in range(NUM_FILES * 3 // 4):
            stack.enter_context(connect(url, HEAD))
        # The head of one that had to make room had not arrived yet.
        while (refused := httpx.get(f"{url}/health", timeout=60)).status_code == 200:
            stack.enter_context(connect(url, HEAD))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "too_many_connections"
        assert refused.headers["retry-after"] == "1"
    while httpx.get(f"{url}/health", timeout=60).status_code == 503:
        pass
    with httpx.Client(base_url=url, timeout=60) as late:
        assert said(late)
