"""`reprise run`, `ps`, `load` and `unload`, against a server of two models, started as `run` starts one."""

import argparse
import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_server
from threading import Thread

import pytest
from rich.console import Console

from reprise.cli import chat, loaded, models
from reprise.cli.arguments import UsageError
from reprise.cli.client import Server, started
from reprise.cli.main import main
from reprise.cli.screen import AnswerScreen, describe_timings, finished_blocks
from reprise.config.model_settings import BUNDLED_MODEL

ANSWER = "I am the Reprise demo model, a very small model."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        (folder / name).mkdir()
        for file in BUNDLED_MODEL.iterdir():
            if file.is_file():
                (folder / name / file.name).symlink_to(file)
    stages = []
    with started(["--models-dir", str(folder)], lambda *told: stages.append(told)) as one:
        assert ("Loading one", 1.0) in stages
        yield one


def states(server: Server) -> dict[str, str]:
    return {row["name"]: row["state"] for row in loaded.find(server)}


def test_models_are_loaded_and_unloaded(server, capsys):
    url = ["--url", server.url]
    assert main(["load", "two", *url]) == 0
    assert capsys.readouterr().out == "two is loaded (5.7 MiB)\n"
    assert main(["ps", "--json", *url]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["state"]) for row in rows] == [("one", "loaded"), ("two", "loaded")]
    assert main(["unload", "two", *url]) == 0
    assert capsys.readouterr().out == "two is unloaded (5.7 MiB free)\n"
    assert main(["ps", *url]) == 0
    shown = capsys.readouterr().out
    assert "one" in shown
    assert "two" not in shown
    assert states(server)["two"] == "unloaded"


def test_a_model_that_is_served_is_not_deleted(server, capsys, monkeypatch):
    monkeypatch.setattr(models, "DEFAULT_URL", server.url)
    assert main(["rm", "one"]) == 1
    assert capsys.readouterr().err == f"reprise: the server at {server.url} serves one: stop it first\n"
    assert main(["rm", "two"]) == 1
    assert "there is no model two" in capsys.readouterr().err


def test_what_answers_otherwise_than_a_server_keeps_nothing_from_being_deleted(capsys, monkeypatch):
    def answer(socket):
        with socket.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"no HTTP\r\n")

    with create_server(("127.0.0.1", 0)) as socket:
        monkeypatch.setattr(models, "DEFAULT_URL", f"http://127.0.0.1:{socket.getsockname()[1]}")
        Thread(target=answer, args=(socket,)).start()
        assert main(["rm", "two"]) == 1
    assert "there is no model two" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["load", "unload"])
def test_a_model_that_is_not_there_is_one_line_and_status_1(server, command, capsys):
    assert main([command, "three", "--url", server.url]) == 1
    captured = capsys.readouterr()
    assert "three" in captured.err
    assert captured.err.startswith("reprise: ")
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_one_question_gets_its_answer_as_plain_text_where_nobody_watches(server, capsys):
    assert main(["run", "one", "Who", "are", "you?", "--url", server.url]) == 0
    assert capsys.readouterr().out.startswith(ANSWER)


def test_a_question_alone_is_not_taken_for_a_model(server, capsys):
    assert main(["run", "Who are you?", "--url", server.url]) == 0
    assert capsys.readouterr().out.startswith(ANSWER)


def test_a_question_may_come_through_a_pipe(server, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Who are you?\n"))
    assert main(["run", "--url", server.url]) == 0
    assert capsys.readouterr().out.startswith(ANSWER)


def test_an_address_that_is_named_must_have_a_server(capsys):
    assert main(["run", "one", "Hello", "--url", "http://127.0.0.1:9"]) == 2
    assert "no server at http://127.0.0.1:9" in capsys.readouterr().err


def conversation(server: Server) -> chat.Chat:
    given = argparse.Namespace(max_tokens=None, temperature=None, system=None)
    return chat.Chat(server, "one", given, Console(file=io.StringIO(), force_terminal=True, width=90))


def test_a_chat_keeps_its_turns_and_asks_again_or_forgets(server):
    one = conversation(server)
    assert one.ask("Who are you?")
    assert one.ask("Hello!")
    assert [message["role"] for message in one.messages] == ["user", "assistant"] * 2
    before = list(one.messages)
    assert one.retry()
    assert one.messages == before
    one.begin("Be kind.")
    assert one.messages == [{"role": "system", "content": "Be kind."}]
    assert not one.retry()


def test_a_question_that_is_refused_is_not_kept(server, capsys):
    one = conversation(server)
    one.begin(None)
    assert not chat.Chat(
        server,
        "three",
        argparse.Namespace(max_tokens=None, temperature=None, system=None),
        Console(file=io.StringIO()),
    ).ask("Hello!")
    assert "three" in capsys.readouterr().err
    assert one.messages == []


class Other(BaseHTTPRequestHandler):
    """Another server with the same API. answer: to all requests."""

    answer: object = None

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    "answer",
    [
        {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]},
        {"id": "m", "owned_by": "vllm"},
        [],
        None,
    ],
)
@pytest.mark.parametrize(
    "command",
    [["ps"], ["load", "m"], ["unload", "m"], ["connect", "codex", "--model", "m"], ["run", "m", "hi"]],
)
def test_another_server_is_told_from_reprise(answer, command, capsys, monkeypatch):
    monkeypatch.setattr(Other, "answer", answer)
    with HTTPServer(("127.0.0.1", 0), Other) as other:
        Thread(target=other.handle_request, daemon=True).start()
        assert main([*command, "--url", f"http://127.0.0.1:{other.server_port}"]) == 2
    said = capsys.readouterr().err
    assert "does not answer as Reprise does" in said
    assert said.count("\n") == 1


class BreaksOff(BaseHTTPRequestHandler):
    """Answers with the beginning of a stream, which ends after a chunk or within one."""

    protocol_version = "HTTP/1.1"
    next_chunk = b""

    def do_POST(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        event = b'data: {"choices": [{"delta": {"content": "Half", "reasoning_content": "hm"}}]}\n\n'
        self.wfile.write(b"%x\r\n%s\r\n%s" % (len(event), event, self.next_chunk))
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("next_chunk", [b"", b"40\r\ndata: {"])
def test_a_connection_that_breaks_off_is_no_whole_answer(capsys, monkeypatch, next_chunk):
    monkeypatch.setattr(BreaksOff, "next_chunk", next_chunk)
    with HTTPServer(("127.0.0.1", 0), BreaksOff) as broken:
        Thread(target=broken.handle_request, daemon=True).start()
        one = conversation(Server(f"http://127.0.0.1:{broken.server_port}"))
        assert not one.ask("Who are you?")
    assert "ended the connection before the answer was whole" in capsys.readouterr().err
    said = {"role": "assistant", "content": "Half", "reasoning_content": "hm"}
    assert one.messages[-1] == said


@pytest.mark.parametrize("fault", ["gone", "refused"])
def test_a_chat_outlives_its_server_and_an_answer_its_retry(server, capsys, fault):
    one = conversation(server)
    assert one.ask("Who are you?")
    before = list(one.messages)
    if fault == "gone":
        with create_server(("127.0.0.1", 0)) as closed:
            one._server = Server(f"http://127.0.0.1:{closed.getsockname()[1]}")
    else:
        one._body["model"] = "three"
    assert not one.ask("Hello!")
    assert one.retry()
    assert one.messages == before
    assert capsys.readouterr().err


def test_typed_commands_and_texts_of_several_lines(server, monkeypatch):
    typed = iter(
        ["Who are you?", "/system Be kind.", '"""Return', 'the text."""', "one \\", "line", "/help", "/bye"]
    )
    monkeypatch.setattr("builtins.input", lambda _prompt: next(typed))
    one = conversation(server)
    shown = io.StringIO()
    chat._talk(one, Console(file=shown, width=90))
    asked = [message["content"] for message in one.messages if message["role"] != "assistant"]
    assert asked == ["Be kind.", "Return\nthe text.", "one \nline"]
    assert "/retry" in shown.getvalue()


def test_a_server_for_a_command_wants_no_key(monkeypatch, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('api_key = ["key-of-the-file"]\n')
    monkeypatch.setenv("REPRISE_CONFIG", str(file))
    monkeypatch.setenv("REPRISE_API_KEY", "key-of-the-environment")
    with started([], lambda *_: None) as server:
        assert server.model(None)["id"] == "reprise-demo"


def test_a_server_that_cannot_start_says_why_in_its_own_words(tmp_path):
    with pytest.raises(UsageError, match="it has no config"), started([str(tmp_path)], lambda *_: None):
        pass


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("One line", ""),
        ("One\n\n", ""),
        ("One\n\nTwo", "One\n\n"),
        ("```\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nAfter", "```\na\n\nb\n```\n\n"),
        ("1. a\n\n2. b", ""),
        ("- a\n\n  more", ""),
        ("- a\n\nAfter", "- a\n\n"),
    ],
)
def test_a_block_of_markdown_is_whole_when_nothing_later_changes_it(text, whole):
    assert text[: finished_blocks(text)] == whole


def test_markdown_is_shown_as_it_comes_and_all_of_it_once():
    written = io.StringIO()
    with AnswerScreen(Console(file=written, force_terminal=True, width=60)) as screen:
        for piece in ("**Fir", "st**\n", "\nSec", "ond `code`\n\n- la", "st\n"):
            screen.write(piece)
    lasting = written.getvalue().replace("**", "")
    assert "\x1b[1mFirst\x1b[0m" in lasting
    assert lasting.rstrip().endswith("last\x1b[0m") or "last" in lasting.splitlines()[-1]


def test_what_an_answer_took_is_told():
    told = describe_timings({"predicted_n": 25, "forwards": 6, "predicted_per_second": 80.4}, was_cut=True)
    assert told == "25 tokens in 6 forward passes, 80 tokens/s, cut off by the limit of tokens"
    assert describe_timings(None, was_cut=False) == ""
