import json

import pytest

from cli.main import main


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
        bench("--url", f"{server.url}/v1/", "--concurrency", "1,3", "--rounds", "2", "--json", str(file)) == 0
    )
    printed = capsys.readouterr()
    assert "python" in printed.out
    assert "3 streams, round 2" in printed.err
    record = json.loads(file.read_text())
    report = record["serve"]
    rounds = report["rounds"]
    assert [(r["concurrency"], r["number"], len(r["measurements"])) for r in rounds] == [
        *[(1, number, 4) for number in (0, 1, 2)],
        *[(3, number, 6) for number in (0, 1, 2)],
    ]
    assert all(len(m["arrivals"]) >= 1 for r in rounds for m in r["measurements"])
    assert [(line["concurrency"], line["num_requests"]) for line in report["levels"]] == [(1, 8), (3, 12)]
    assert report["settings"]["seed"] == 5
    assert record["machine"]["cores"] >= 1
    assert report["notes"] == []


def test_no_prompt_is_sent_twice_to_a_server(bench, server, full_answer):
    server.play(*full_answer)
    assert bench("--url", server.url, "--concurrency", "1,2,4", "--rounds", "2") == 0
    contents = [body["messages"][0]["content"] for body in server.bodies]
    assert len(set(contents)) == len(contents)
    assert {body["model"] for body in server.bodies} == {"tiny"}


def test_two_servers_alternate_with_the_same_prompts(
    bench, server, other_server, full_answer, tmp_path, capsys
):
    server.play(*full_answer)
    other_server.play(*full_answer)
    file = tmp_path / "rows.json"
    arguments = ["--url", server.url, "--against", other_server.url, "--against-model", "mine"]
    page = tmp_path / "page.html"
    arguments += ["--html", str(page), "--csv", str(tmp_path / "rows.csv")]
    assert bench(*arguments, "--concurrency", "2", "--rounds", "2", "--json", str(file)) == 0
    assert "Servers under load" in page.read_text()
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 2 * 3 * 4
    report = json.loads(file.read_text())["serve"]
    names = [server.url.removeprefix("http://"), other_server.url.removeprefix("http://")]
    assert [r["side"] for r in report["rounds"]] == [*names, *reversed(names), *names]
    assert [c["quantity"] for c in report["comparisons"]] == [
        "tokens/s",
        "first token p50",
        "inter-token p50",
        "inter-token p99",
    ]
    # An answer that arrives in a single read has no gaps to compare.
    ratios = [c["ratio"] for c in report["comparisons"] if c["ratio"] or "inter-token" not in c["quantity"]]
    assert all(ratio["lowest"] <= ratio["highest"] for ratio in ratios)
    sent, sent_there = (sorted(b["messages"][0]["content"] for b in s.bodies) for s in (server, other_server))
    assert sent == sent_there
    assert {body["model"] for body in other_server.bodies} == {"mine"}
    assert names[1] in capsys.readouterr().out


def test_mlx_lm_server_is_started_and_compared(bench, server, full_answer, tmp_path):
    server.play(*full_answer)
    file = tmp_path / "rows.json"
    arguments = ["--url", server.url, "--against", "mlx_lm.server", "--concurrency", "2", "--rounds", "1"]
    assert bench(*arguments, "--json", str(file)) == 0
    line = json.loads(file.read_text())["serve"]["levels"][1]
    assert (line["side"], line["num_requests"], line["num_failed"]) == ("mlx_lm.server", 4, 0)


def test_a_seed_that_may_keep_a_server_from_batching_is_pointed_out(
    bench, server, other_server, full_answer, capsys
):
    server.play(*full_answer)
    other_server.play(*full_answer)
    arguments = ["--url", server.url, "--against", other_server.url, "--concurrency", "1", "--rounds", "1"]
    assert bench(*arguments) == 0
    assert "requests had a seed" not in capsys.readouterr().out
    assert bench(*arguments, "--temperature", "1") == 0
    assert "requests had a seed" in capsys.readouterr().out


def test_each_server_gets_its_own_key(bench, server, other_server, full_answer, monkeypatch, capsys):
    server.play(*full_answer)
    other_server.play(*full_answer)
    server.key, other_server.key = "sk-one", "sk-two"
    arguments = ["--url", server.url, "--concurrency", "1", "--rounds", "1", "--requests", "1"]
    assert bench(*arguments, "--api-key", "sk-one") == 0
    against = ["--against", other_server.url]
    assert bench(*arguments, *against, "--api-key", "sk-one", "--against-api-key", "sk-two") == 0
    assert len(other_server.bodies) == 2
    capsys.readouterr()
    # No key is sent to another server.
    monkeypatch.setenv("REPRISE_API_KEY", "sk-one, sk-three")
    assert bench(*arguments) == 0
    assert bench(*arguments, *against) == 1
    assert capsys.readouterr().err.endswith(
        f"reprise: {other_server.url} needs an API key; pass it with --against-api-key\n"
    )
    assert bench(*arguments, "--api-key", "sk-two") == 1
    assert capsys.readouterr().err == f"reprise: {server.url} needs another API key; pass it with --api-key\n"


def test_the_tables_lose_no_figure_on_a_narrow_terminal(bench, server, full_answer, monkeypatch, capsys):
    server.play(*full_answer)
    monkeypatch.setattr("bench.serving.run_serve._WIDTH", 80)
    assert bench("--url", server.url, "--concurrency", "1", "--rounds", "1") == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(len(line) for line in out.splitlines() if "127.0.0.1" in line) <= 80


def test_the_bare_loop_alternates_with_one_stream(bench, server, full_answer, tmp_path):
    server.play(*full_answer)
    file = tmp_path / "rows.json"
    arguments = ["--url", server.url, "--bare", "--concurrency", "1,2", "--rounds", "1", "--json", str(file)]
    assert bench(*arguments) == 0
    report = json.loads(file.read_text())["serve"]
    name = server.url.removeprefix("http://")
    turns = [(r["side"], r["concurrency"]) for r in report["rounds"]]
    assert turns == [(name, 1), ("bare loop", 1), ("bare loop", 1), (name, 1)] + [(name, 2)] * 2
    assert [c["quantity"] for c in report["comparisons"]] == ["decode tokens/s", "request tokens/s"]


def test_one_failed_request_shows_and_makes_the_status_1(bench, server, full_answer, capsys):
    server.play(b'{"error": {"message": "too busy"}}', status=429)
    server.play(*full_answer)
    assert bench("--url", server.url, "--concurrency", "1", "--rounds", "1") == 1
    printed = capsys.readouterr()
    assert "failed: status 429: too busy (1 request)" in printed.out
    assert "1 failed" in printed.err


def test_nothing_but_failures_still_gives_a_report(bench, server, capsys):
    server.play(b"", status=500)
    assert bench("--url", server.url, "--concurrency", "1", "--rounds", "1") == 1
    assert "failed: status 500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (
            lambda e: [e.frame("a"), e.frame(finish_reason="stop"), e.usage(1), e.done],
            "ended early, 1 of 4 tokens, stop",
        ),
        (lambda e: [e.frame("a"), e.usage(5), e.done], "sent 5 tokens; the limit was 4"),
        (
            lambda e: [*[e.frame("a")] * 6, e.usage(4), e.done],
            "sent more text chunks than its usage counts tokens",
        ),
        (lambda e: [*[e.frame("a")] * 4, e.done], "reported no usage; tokens were counted from the text"),
        (lambda e: [*[e.frame("a")] * 4, e.usage(4, prompt_tokens=9), e.done], "does it serve that model?"),
        (lambda e: [*[e.frame("a")] * 4, e.usage(4, cached_tokens=60), e.done], "from its prefix cache"),
    ],
)
def test_answers_that_make_figures_doubtful_are_noted(bench, server, events, capsys, answer, note):
    server.play(*answer(events))
    assert bench("--url", server.url, "--concurrency", "1", "--rounds", "1") == 0
    assert note in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "argument --rounds: 0 is not a whole number above 0"),
        (["--max-tokens", "many"], "argument --max-tokens: many is not a whole number above 0"),
        (["--concurrency", "1,,2"], "argument --concurrency:  is not a whole number above 0"),
        (["--temperature", "hot"], "argument --temperature: hot is not a number from 0 to 2"),
        (["--url", "localhost:8000"], "localhost:8000 is not an address such as http://127.0.0.1:8000"),
        (["--model", "/no/such"], "/no/such is not a model folder: it has no config.json"),
        (["--json", "/no/such/file"], "cannot write /no/such/file"),
        (["--bare", "--concurrency", "2"], "--bare is compared at one stream; add 1 to --concurrency"),
        (["--bare", "--temperature", "1"], "--bare decodes greedily; leave --temperature at 0"),
        (["--requests", "3", "--concurrency", "1,4"], "--requests is 3, too few for 4 concurrent streams"),
        (["--against-model", "a"], "--against-model needs --against"),
        (["--url-model", "a"], "--url-model needs --url"),
        (["--api-key", "a"], "--api-key needs --url"),
        (["--against-api-key", "a"], "--against-api-key needs --against"),
        (["--against", "mlx_lm.server", "--against-model", "a"], "--against mlx_lm.server has a model"),
        (["--url", "http://a:1", "--against", "http://a:1/v1"], "--against and --url are the same server"),
        (["--rouns", "1"], "unknown argument --rouns"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line_and_status_2(bench, capsys, arguments, message):
    assert bench(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("reprise: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_a_server_that_lists_no_model_asks_for_the_name(bench, server, capsys):
    server.models = {"data": []}
    assert bench("--url", server.url) == 1
    assert "name one with --url-model" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line_and_status_1(bench, capsys):
    assert bench("--url", "http://127.0.0.1:9") == 1
    assert capsys.readouterr().err == "reprise: no server listens at http://127.0.0.1:9\n"
