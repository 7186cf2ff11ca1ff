"""`reprise bench serve` with chats instead of random words."""

import json

import pytest

from reprise.cli.main import main


def test_a_server_that_is_not_there_is_a_peer_that_failed(
    model_folder, server, full_answer, tmp_path, capsys
):
    server.play(*full_answer)
    file, page = tmp_path / "serve.json", tmp_path / "serve.html"
    given = ["--model", str(model_folder), "--workloads", "quotes", "--concurrency", "1", "--chats", "1"]
    given += ["--rounds", "1", "--max-tokens", "6", "--json", str(file), "--html", str(page)]
    given += ["--server", f"there={server.url}", "--server", "gone=http://127.0.0.1:1=m"]
    assert main(["bench", "serve", *given]) == 1
    rows = {row["name"]: row for row in json.loads(file.read_text())["serve"]["levels"]}
    assert (rows["there"]["tokens"], rows["there"]["failed"]) == (4, 0)
    assert rows["gone"]["error"].startswith("cannot connect")
    assert "Servers under load" in page.read_text()
    assert "gone: failed: cannot connect" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--server", "a=http://host", "--server", "a=http://other"], "the name a is already taken"),
        (["--server", "a=http://127.0.0.1:1", "--server-key", "b=k"], "no --server is named b"),
        (["--server", "mlx_lm.server-draft"], "mlx_lm.server-draft needs a --draft-model"),
        (["--workloads", "edit"], "--workloads: edit is not one of"),
        (["--prompts", __file__, "--concurrency", "1,2"], "--prompts are asked once"),
        (["--workloads", "free"], "free is not a greedy chat; remove it"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(given, message, capsys):
    assert main(["bench", "serve", *given]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_several_streams_are_asked_at_once(server, other_server, full_answer, model_folder, tmp_path):
    server.play(*full_answer)
    other_server.play(*full_answer)
    file = tmp_path / "peers.json"
    given = ["--model", str(model_folder), "--workloads", "quotes,records", "--concurrency", "3"]
    given += ["--rounds", "1", "--server", f"a={server.url}", "--server", f"b={other_server.url}"]
    assert main(["bench", "serve", *given, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["serve"]["levels"]
    assert [(row["name"], row["workload"], row["streams"], row["requests"]) for row in rows] == [
        (name, workload, 3, 4) for workload in ("quotes", "records") for name in "ab"
    ]  # fmt: skip
    assert (rows[1]["equal"], rows[1]["parity"]) == (4, "PASS")
    assert server.most_at_once <= 3


def test_a_llama_server_that_is_not_installed_is_one_line(model_folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "model.gguf").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    given = ["--model", str(model_folder), "--server", f"llama-server={tmp_path}/model.gguf"]
    assert main(["bench", "serve", *given]) == 1
    assert "llama-server is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["http://127.0.0.1:1", "a=", "a=ftp://host"])
def test_a_server_is_a_name_and_an_address(text, capsys):
    assert main(["bench", "serve", "--server", text]) == 2
    assert "is not" in capsys.readouterr().err


def test_turns_are_shown_apart_with_what_the_prefix_cache_had(server, events, model_folder, tmp_path):
    server.play(events.frame("one"), events.usage(1, prompt_tokens=100, cached_tokens=64), events.done)
    file = tmp_path / "turns.json"
    given = ["--model", str(model_folder), "--workloads", "passage", "--prompt-tokens", "200", "--by-turn"]
    given += [
        "--chats",
        "1",
        "--rounds",
        "1",
        "--concurrency",
        "1",
        "--server",
        f"a={server.url}",
        "--json",
        str(file),
    ]
    assert main(["bench", "serve", *given]) == 0
    rows = json.loads(file.read_text())["serve"]["levels"]
    assert [(row["turn"], row["requests"]) for row in rows] == [(1, 1), (2, 1), (3, 1)]
    assert {(row["num_prompt_tokens"], row["num_cached_tokens"]) for row in rows} == {(100, 64)}
