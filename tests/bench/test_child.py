"""What a benchmark starts is stopped at its end, and its last words are an error if it does not start."""

import signal
import sys

import pytest

from reprise.bench.experiment import BenchError
from reprise.bench.peers import is_ready, run_server

STUB = """
import http.server, sys
host, _, port = sys.argv[-3:]
server = http.server.HTTPServer((host, int(port)), http.server.BaseHTTPRequestHandler)
def answer(self):
    self.send_response(200 if self.path == "/health" else 404)
    self.end_headers()
server.RequestHandlerClass.do_GET = answer
server.serve_forever()
"""


@pytest.fixture(autouse=True)
def _handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def stub(program):
    return run_server("it", (sys.executable, "-c", program))


def test_a_server_answers_while_the_context_is_open():
    with stub(STUB) as url:
        assert is_ready(url)
    assert not is_ready(url)


def test_a_benchmark_that_is_terminated_stops_its_server_first():
    with pytest.raises(SystemExit, match="143"), stub(STUB) as url:
        signal.raise_signal(signal.SIGTERM)
    assert url.startswith("http://127.0.0.1:")
    assert not is_ready(url)


def test_a_server_that_does_not_start_is_an_error_with_its_last_words():
    program = "import sys; sys.exit('loading\\nno such model\\n')"
    with pytest.raises(BenchError, match=r"^it exited with status 1: no such model$"), stub(program):
        pass
