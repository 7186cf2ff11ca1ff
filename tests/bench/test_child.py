import signal
import sys

import pytest

from bench.errors import BenchError
from bench.serving.processes import BareLoop, exit_on_sigterm, is_ready, own_server
from bench.serving.servers import PromptMaker
from engine.model.loading import load_tokenizer

STUB = """
import http.server, sys
fixed = "serve --host 127.0.0.1 --port 0 --log-format text --api-key  --api-key-file none"
assert " ".join(sys.argv[1:]) == f"{fixed} --max-rows 2"
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
def answer(self):
    self.send_response(200)
    self.end_headers()
server.RequestHandlerClass.do_GET = answer
print("Listening on http://127.0.0.1:%d, Ctrl-C stops it" % server.server_port, flush=True)
server.serve_forever()
"""


def stub(program):
    return sys.executable, "-c", program


def test_an_own_server_is_found_by_its_log_and_stopped_at_the_end():
    with own_server(["--max-rows", "2"], stub(STUB)) as own:
        assert is_ready(own.url)
    assert not is_ready(own.url)


def test_a_benchmark_that_is_terminated_stops_its_server_first():
    own = own_server(["--max-rows", "2"], stub(STUB))
    with pytest.raises(SystemExit, match="143"), exit_on_sigterm(), own:
        signal.raise_signal(signal.SIGTERM)
    assert own.url.startswith("http://127.0.0.1:")
    assert not is_ready(own.url)


def test_a_server_that_does_not_start_is_an_error_with_its_last_words():
    server = own_server([], stub("import sys; sys.exit('no such model\\n')"))
    with pytest.raises(BenchError, match="exited with status 1: no such model"), server:
        pass


def test_a_bare_loop_that_does_not_start_is_an_error_with_its_last_words():
    loop = BareLoop("nowhere", stub("import sys; sys.exit('no such folder')"))
    with pytest.raises(BenchError, match="exited with status 1: no such folder"), loop:
        pass


def test_a_bare_loop_that_dies_at_work_is_an_error(tokenizer):
    loop = BareLoop("any", stub("print('{}', flush=True); input(); raise SystemExit('out of memory')"))
    prompt = PromptMaker(tokenizer, 64, seed=1).make()
    with pytest.raises(BenchError, match="out of memory"), loop:
        loop.answer(prompt.ids, 4)


def test_the_bare_loop_gives_every_answer_its_full_length(model_folder):
    tokenizer = load_tokenizer(model_folder)
    maker = PromptMaker(tokenizer, 32, seed=1)
    with BareLoop(str(model_folder)) as loop:
        seen = [loop.answer(maker.make().ids, 40) for _ in range(2)]
    assert [len(one["token_ids"]) for one in seen] == [40, 40]
    assert all(len(one["arrived_s"]) == 40 for one in seen)
