import json

import pytest

from reprise.cli.main import main


@pytest.fixture
def bench(model_folder, monkeypatch):
    """Return a function that runs `reprise bench serve` on the tiny model, and returns the exit status."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        fixed = ["--model", str(model_folder), "--prompt-tokens", "64", "--max-tokens", "4", "--seed", "5"]
        return main(["bench", "serve", *fixed, *arguments])

    return run


def test_a_server_is_measured_at_each_level_and_all_rows_are_written(
    bench, server, full_answer, tmp_path, capsys
):
    server.play(*full_answer)
    file = tmp_path / "rows.json"
    assert (
        bench(
            "--server", f"it={server.url}/v1/", "--concurrency", "1,3", "--rounds", "2", "--json", str(file)
        )
        == 0
    )
    printed = capsys.readouterr()
    assert "python" in printed.out
    assert "3 streams, round 2" in printed.err
    record = json.loads(file.read_text())
    report = record["serve"]
    assert [(row["streams"], row["round"]) for row in report["rows"]] == [
        *[(1, number) for number in (0, 1, 2) for _ in range(4)],
        *[(3, number) for number in (0, 1, 2) for _ in range(4)],
    ]
    assert all(len(row["arrivals"]) >= 1 for row in report["rows"])
    assert [(line["streams"], line["requests"]) for line in report["levels"]] == [(1, 8), (3, 8)]
    assert report["settings"]["seed"] == 5
    assert record["machine"]["cores"] >= 1
    assert report["notes"] == []


def test_no_prompt_is_sent_twice_to_a_server(bench, server, full_answer):
    server.play(*full_answer)
    assert bench("--server", f"it={server.url}", "--concurrency", "1,2,4", "--rounds", "2") == 0
    contents = [body["messages"][0]["content"] for body in server.bodies]
    assert len(set(contents)) == len(contents)
    assert {body["model"] for body in server.bodies} == {"tiny"}


def test_two_servers_alternate_with_the_same_prompts(
    bench, server, other_server, full_answer, tmp_path, capsys
):
    server.play(*full_answer)
    other_server.play(*full_answer)
    file = tmp_path / "rows.json"
    arguments = ["--server", f"it={server.url}", "--server", f"there={other_server.url}=mine"]
    page = tmp_path / "page.html"
    arguments += ["--html", str(page)]
    assert bench(*arguments, "--concurrency", "2", "--rounds", "2", "--json", str(file)) == 0
    assert "Servers under load" in page.read_text()
    report = json.loads(file.read_text())["serve"]
    names = ["it", "there"]
    pairs = (names, names[::-1]) * 3
    sides = [one for pair in pairs for one in pair for _ in range(2)]
    assert [row["arm"] for row in report["rows"]] == sides
    assert [level["name"] for level in report["levels"]] == names
    other = report["levels"][1]
    assert other["speedup_low"] <= other["speedup"] <= other["speedup_high"]
    sent, sent_there = (sorted(b["messages"][0]["content"] for b in s.bodies) for s in (server, other_server))
    assert sent == sent_there
    assert {body["model"] for body in other_server.bodies} == {"mine"}
    assert names[1] in capsys.readouterr().out


def test_the_answers_that_two_servers_give_alike_are_counted(
    bench, server, other_server, events, full_answer, tmp_path, capsys
):
    server.play(*full_answer)
    for _ in range(4):  # the warm-up
        other_server.play(*full_answer)
    other_server.play(events.frame("other"), events.usage(4), events.done)
    other_server.play(*full_answer)
    file = tmp_path / "rows.json"
    arguments = ["--server", f"it={server.url}", "--server", f"there={other_server.url}", "--json", str(file)]
    assert bench(*arguments, "--concurrency", "1", "--rounds", "1") == 0
    ours, theirs = json.loads(file.read_text())["serve"]["levels"]
    assert (ours["judged"], theirs["judged"], theirs["equal"]) == (0, 4, 3)
    assert "3 of 4" in capsys.readouterr().out


def test_mlx_lm_server_is_started_and_compared(bench, server, full_answer, tmp_path):
    server.play(*full_answer)
    file = tmp_path / "rows.json"
    arguments = ["--server", f"it={server.url}", "--server", "mlx_lm.server", "--json", str(file)]
    assert bench(*arguments, "--concurrency", "2", "--rounds", "1") == 0
    report = json.loads(file.read_text())["serve"]
    line = report["levels"][1]
    assert (line["name"], line["requests"], line["failed"]) == ("mlx_lm.server", 4, 0)
    assert {row["tokens"] for row in report["rows"]} == {4}
    assert report["notes"] == []


def test_each_server_gets_its_own_key(bench, server, other_server, full_answer, capsys):
    server.play(*full_answer)
    other_server.play(*full_answer)
    server.key, other_server.key = "sk-one", "sk-two"
    arguments = ["--server", f"it={server.url}", "--server", f"there={other_server.url}"]
    arguments += ["--concurrency", "1", "--rounds", "1", "--server-key", "it=sk-one"]
    assert bench(*arguments, "--server-key", "there=sk-two") == 0
    assert len(other_server.bodies) == 8
    capsys.readouterr()
    for keys in [], ["--server-key", "there=sk-one"]:
        assert bench(*arguments, *keys) == 1
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith(f"reprise bench serve: {other_server.url} lists no model (Client error '401")
        assert error.endswith("a key with --server-key")


def test_the_tables_lose_no_figure_on_a_narrow_terminal(bench, server, full_answer, monkeypatch, capsys):
    server.play(*full_answer)
    monkeypatch.setattr("reprise.bench.serve._WIDTH", 80)
    assert bench("--server", f"it={server.url}", "--concurrency", "1", "--rounds", "1") == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(len(line) for line in out.splitlines() if " it " in line) <= 80


def test_one_failed_request_shows_and_makes_the_status_1(bench, server, full_answer, capsys):
    server.play(b"too busy", status=429)
    server.play(*full_answer)
    assert bench("--server", f"it={server.url}", "--concurrency", "1", "--rounds", "1") == 1
    printed = capsys.readouterr()
    assert "failed: status 429: too busy (requests: 1)" in printed.out
    assert "1 stream, round 1: it" in printed.err


def test_nothing_but_failures_still_gives_a_report(bench, server, capsys):
    server.play(b"", status=500)
    assert bench("--server", f"it={server.url}", "--concurrency", "1", "--rounds", "1") == 1
    assert "failed: status 500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "argument --rounds: 0 is not a whole number above 0"),
        (["--max-tokens", "many"], "argument --max-tokens: many is not a whole number above 0"),
        (["--concurrency", "1,,2"], "argument --concurrency:  is not a whole number above 0"),
        (["--server", "it=localhost:8000"], "localhost:8000 is not an address such as http://127.0.0.1:8000"),
        (["--model", "/no/such"], "/no/such is not a model folder: it has no config.json"),
        (["--json", "/no/such/file"], "cannot write /no/such/file"),
        (["--server-key", "it=k"], "--server-key: no --server is named it"),
        (["--rouns", "1"], "unknown argument --rouns"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line_and_status_2(bench, capsys, arguments, message):
    assert bench(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(("reprise: argument", "reprise: unknown", "reprise bench serve: "))
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_a_server_that_lists_no_model_asks_for_the_name(bench, server, capsys):
    server.models = {"data": []}
    assert bench("--server", f"it={server.url}") == 1
    assert "name one with NAME=URL=MODEL" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line_and_status_1(bench, capsys):
    assert bench("--server", "it=http://127.0.0.1:9") == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("reprise bench serve: http://127.0.0.1:9 lists no model (")
    assert "refused" in error
