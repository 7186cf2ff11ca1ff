"""No command asks a proxy for this machine's server, or shows one a key."""

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from reprise.bench import peers
from reprise.cli.main import main
from reprise.server.run import find_user

CARD = {"id": "one", "owned_by": "reprise", "context_length": 40_000, "tools": True, "message": "Reprise"}
SEEN = []


class Handler(BaseHTTPRequestHandler):
    """Answers as a server of one model, or as a proxy, which notes what it is asked."""

    def do_GET(self):
        if self.server.is_proxy:
            SEEN.append((self.requestline.split()[:2], self.headers.get("Authorization")))
        self.send_response(502 if self.server.is_proxy else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [CARD]} | CARD).encode())

    do_CONNECT = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


def _start(is_proxy: bool) -> HTTPServer:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.is_proxy = is_proxy
    Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server, where the environment names a proxy."""
    server, proxy = _start(False), _start(True)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    SEEN.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    for one in (server, proxy):
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize("key", [[], ["--api-key", "secret"]])
def test_this_machine_s_server_is_found(url, key, capsys):
    for one in (url, url.replace("127.0.0.1", "localhost")):
        assert main(["connect", "codex", "--url", one, *key]) == 0
        assert "one" in capsys.readouterr().out
    assert peers.is_ready(url)
    with peers.client_of(url, "secret") as client:
        assert peers.first_model(client) == "one"
    assert find_user(url) == "reprise"
    assert SEEN == []


@pytest.mark.parametrize(
    ("scheme", "key", "seen"),
    [
        ("http", [], [(["GET", "http://reprise.invalid/v1/models"], None)]),
        ("http", ["--api-key", "secret"], []),
        ("https", ["--api-key", "secret"], [(["CONNECT", "reprise.invalid:443"], None)]),
    ],
)
@pytest.mark.usefixtures("url")
def test_a_proxy_to_elsewhere_sees_no_key(scheme, key, seen, monkeypatch):
    real = socket.getaddrinfo

    def look_up(host, *rest, **more):
        if host == "reprise.invalid":
            raise socket.gaierror("no such host")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert main(["ps", "--url", f"{scheme}://reprise.invalid", *key]) in (1, 2)
    assert seen == SEEN
