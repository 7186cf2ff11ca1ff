"""What a benchmark starts is stopped at its end, and its last words are an error if it does not start."""

import signal
import sys
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import active_children

import pytest

from reprise.bench.experiment import BenchError
from reprise.bench.serving.bare_loop import start_loop
from reprise.bench.serving.servers import is_ready, run_server
from reprise.bench.workloads import Turn
from reprise.engine.model.loading import load_tokenizer

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
TURN = Turn(({"role": "user", "content": "one"},), None)


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


def test_a_loop_that_cannot_load_its_model_raises_the_reason(tmp_path):
    with pytest.raises(FileNotFoundError, match="config"), ExitStack() as children:
        start_loop(children, None, 4, str(tmp_path))


def test_a_loop_whose_process_dies_is_an_error(model_folder, tokenizer):
    with ExitStack() as children:
        ask = start_loop(children, tokenizer, 4, str(model_folder))
        for child in active_children():
            child.kill()
        with pytest.raises(BrokenProcessPool):
            ask([TURN])


def test_the_bare_loop_gives_every_answer_its_full_length(model_folder):
    tokenizer = load_tokenizer(model_folder)
    with ExitStack() as children:
        ask = start_loop(children, tokenizer, 40, str(model_folder), False)
        answers = ask([TURN] * 2)
    for answer in answers:
        assert answer.tokens == sum(tokens for _, tokens in answer.arrivals) == 40
        assert answer.error is None
    assert answers[0].text == answers[1].text
    assert answers[1].started_s >= answers[0].duration_s
