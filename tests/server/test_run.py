"""The server process: its output, its signals and its exit status."""

import asyncio
import errno
import gc
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.server.run import HttpServer, ListenError, bind_address, explain, run
from tests.holds import note_holds
from tests.server.fake_engine import SCRIPTS, FakeEngine

BODY = {"messages": [{"role": "user", "content": "hello"}], "stream": True}


class Process:
    """A server process whose standard error is collected line by line."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "tests.server.fake_server", *arguments]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.popen.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    @property
    def text(self):
        return "".join(self.lines)

    def wait_for(self, pattern):
        """Wait until the output matches the pattern; return the match."""
        with self._changed:
            assert self._changed.wait_for(lambda: re.search(pattern, self.text), 240), self.text
        return re.search(pattern, self.text)

    def address(self):
        return self.wait_for(r"address +(http://\S+)\n")[1]

    def exit_status(self):
        status = self.popen.wait(240)
        self._reader.join(60)
        return status


@pytest.fixture
def start():
    """Starts server processes; kills them at the end of the test."""
    started = []

    def start_one(*arguments):
        started.append(Process(*arguments))
        return started[-1]

    yield start_one
    for process in started:
        process.popen.kill()
        process.popen.wait()
        note_holds(process.lines)


def test_the_banner_says_what_is_served_and_where_and_its_curl_works(start):
    process = start("echo", "served_model_name=alias")
    address = process.address()
    curl = process.wait_for(r"(?s)  (curl .*?'\{.*\}')\n")[1]
    banner = process.text
    assert "org/fake-model, alias (fake, 8.1M parameters, bfloat16)" in banner
    assert re.search(r"device +cpu", banner)
    assert re.search(r"memory +15.4 MiB for weights, 8.0 GiB in this machine", banner)
    assert re.search(r"context +1,000 tokens", banner)
    assert re.search(r"drafts +on, where they save time\n", banner)
    assert address in curl
    answer = subprocess.run(
        ["bash", "-c", curl + " --silent"], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(answer)["choices"][0]["message"]["content"] == "user: Hello!\n"


def test_a_banner_that_cannot_be_written_stops_no_server(monkeypatch):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    server = HttpServer(FakeEngine(SCRIPTS["echo"]), Settings())
    with bind_address("127.0.0.1", 0) as bound:
        monkeypatch.setattr(sys, "stderr", Full())
        server.should_exit = True
        asyncio.run(server.serve(sockets=[bound]))
    assert server.started


def test_the_real_port_stands_in_the_json_log_too(start):
    process = start("echo", "log_format=json")
    ready = json.loads(process.wait_for(r'(?m)^.*"ready".*$')[0])
    assert httpx.get(ready["address"] + "/health").status_code == 200


def in_use(port):
    return f"cannot listen on 127.0.0.1 port {port}"


def test_a_port_that_reprise_has_is_said_to_be_its(start):
    address = start("echo").address()
    port = int(address.rpartition(":")[2])
    with pytest.raises(ListenError) as raised:
        bind_address("127.0.0.1", port)
    said = explain(raised.value, Settings(port=port))
    assert said.startswith(f"{in_use(port)}: Reprise runs there already, at {address}. Use it, or choose")
    assert "--port" in said


def test_a_port_in_use_is_one_line_with_the_way_out_and_status_1(monkeypatch, capsys):
    monkeypatch.setattr("reprise.server.run.configure_logs", lambda *_, **__: None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert run(Settings(port=port)) == 1
    assert capsys.readouterr().err == (
        f"reprise: {in_use(port)}: a program has it that does not answer, as Reprise while it starts. Wait, "
        "or choose another with --port, or 0 for any that is free\n"
    )


def test_a_port_that_another_program_has_is_said_to_be_its():
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        with pytest.raises(ListenError) as raised:
            bind_address("127.0.0.1", other.server_port)
        said = explain(raised.value, Settings(port=other.server_port))
    assert said.startswith(f"{in_use(other.server_port)}: another program has it. End that, or choose")


def test_a_start_that_fails_leaves_the_garbage_collector_on(monkeypatch):
    monkeypatch.setattr("reprise.server.run.configure_logs", lambda *_, **__: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(Settings(port=taken.getsockname()[1])) == 1
    assert gc.isenabled()


@pytest.mark.parametrize("host", ["256.1.1.1", "no.such.host.invalid"])
def test_an_invalid_address_is_one_line_and_status_1(start, host):
    process = start("echo", f"host={host}")
    assert process.exit_status() == 1
    (line,) = process.lines
    assert line.startswith(f"reprise: cannot listen on {host}: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_an_idle_server_with_0_at_once(start, number):
    # What has to end first gets an hour, so that the test itself would not see the end.
    process = start("echo", "DRAIN_S=3600")
    with httpx.Client() as http:
        # An idle keep-alive connection must not delay the exit.
        assert http.get(process.address() + "/health").status_code == 200
        process.popen.send_signal(number)
        assert process.exit_status() == 0


def test_while_draining_new_requests_get_503_and_running_ones_finish(start):
    process = start("wait_midway", "DRAIN_S=1.5")
    address = process.address()
    with httpx.stream("POST", address + "/v1/chat/completions", json=BODY) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("stopping")
        # The engine starts to drain a moment after the signal.
        while (health := httpx.get(address + "/health")).status_code == 200:
            pass
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        refused = httpx.post(address + "/v1/completions", json={"prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"]
        *_, last = (line for line in lines if line)
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
    assert process.exit_status() == 0
    assert "stopping: 1 running request has 1.5 s to finish" in process.text
    assert "stopped: 1 request was ended before its answer was whole" in process.text


def test_a_second_ctrl_c_ends_every_stream_with_an_error_and_the_process_at_once(start):
    process = start("wait_midway", "DRAIN_S=600")
    with httpx.stream("POST", process.address() + "/v1/chat/completions", json=BODY) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        process.popen.send_signal(signal.SIGINT)
        process.wait_for("stopping")
        process.popen.send_signal(signal.SIGINT)
        *_, last = (line for line in lines if line)
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
        assert process.exit_status() == 130
    assert "stopping at once: 1 requests end" in process.text


def test_a_dead_engine_tells_its_waiters_and_ends_the_process_with_1(start):
    process = start("die")
    response = httpx.post(process.address() + "/v1/chat/completions", json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert process.exit_status() == 1
    assert process.lines[-1] == "reprise: the engine has died: RuntimeError: out of luck\n"
