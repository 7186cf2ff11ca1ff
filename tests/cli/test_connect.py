"""`reprise connect`, against a server that answers GET /v1/models, with a home of its own."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from errno import ENOSPC
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from stat import S_ISREG
from threading import Thread

import pytest
import yaml

from reprise.cli import connect
from reprise.cli.main import main
from reprise.config.agents.edit_text import set_toml
from reprise.config.agents.known import AGENTS, FIRST_PROMPT_TOKENS

CARD = {"id": "qwen/coder", "owned_by": "reprise", "context_length": 40_000, "tools": True}
REQUESTS: dict = {"data": []}
FILES = {
    "codex": ".codex/config.toml",
    "claude": ".claude/settings.json",
    "opencode": ".config/opencode/opencode.json",
    "aider": ".aider.conf.yml",
    "continue": ".continue/config.yaml",
    "zed": ".config/zed/settings.json",
    "pi": ".pi/agent/models.json",
    "crush": ".config/crush/crush.json",
    "goose": ".config/goose/config.yaml",
    "openclaw": ".openclaw/openclaw.json",
    "kimi": ".kimi-code/config.toml",
    "droid": ".factory/settings.json",
}
PARSERS = {".toml": tomllib.loads, ".json": json.loads, ".yml": yaml.safe_load, ".yaml": yaml.safe_load}


class Models(BaseHTTPRequestHandler):
    """The key is "right" for those who send one; without any, all may see the models."""

    def do_GET(self):
        is_refused = self.headers.get("Authorization", "Bearer right") != "Bearer right"
        answers = {
            "/v1/models": {"data": [CARD]},
            "/v1/requests": REQUESTS,
            "/v1/models/claude-sonnet-4-5": CARD | {"id": self.path[11:]},
        }
        self.send_response(401 if is_refused else 200 if self.path in answers else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path)).encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Models)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def parsed(path: Path) -> dict:
    return PARSERS[path.suffix](path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_is_told_address_model_and_context(agent, url, home, capsys):
    assert main(["connect", agent, "--url", url]) == 0
    out = capsys.readouterr().out
    for part in [url, "qwen/coder", "40000"]:
        assert part in out
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("agent", "name", "context_tokens", "told"),
    [
        ("codex", "smollm2", 8192, ("8,192", "8,900")),
        ("codex", "smollm2", 9_000, None),
        ("cline", "smollm2", 4096, ("4,096", "5,500")),
        ("codex", "reprise-demo", 16_000, ("16,000", "16,800")),
        ("aider", "smollm2", 8192, None),
        ("zed", "smollm2", 512, None),
    ],
)
def test_a_context_smaller_than_an_agents_first_prompt_is_told_with_both_numbers(
    agent, name, context_tokens, told, url, capsys, monkeypatch
):
    monkeypatch.setattr(connect, "BUNDLED_NAME", "another")
    monkeypatch.setitem(CARD, "id", name)
    monkeypatch.setitem(CARD, "context_length", context_tokens)
    assert main(["connect", agent, "--url", url]) == 0
    said = capsys.readouterr().err
    expected = ""
    if told:
        expected = (
            f"reprise: {name} takes {told[0]} tokens, prompt and answer together, and the first prompt of "
            f"{agent} alone has about {told[1]}: the server will refuse it. Agents want 65,536 or more; "
            "`reprise doctor` proposes a model\n"
        )
    assert said == expected


def a_request(num_tokens: int, num_cached: int | None, first_token_ms: float | None, **more: str) -> dict:
    counts = {"num_prompt_tokens": num_tokens, "num_cached_tokens": num_cached}
    return {**counts, "first_token_ms": first_token_ms, **more}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("agent", "requests", "seconds", "speed"),
    [
        ("codex", [a_request(1000, 0, 2500.0)], 22, 400),
        # Another waited, and others say nothing: short, cached, without a token, or of another model.
        ("codex", [a_request(1000, 0, 2500.0), a_request(1000, 0, 9000.0)], 22, 400),
        ("claude", [a_request(3000, 2000, 2000.0, model="qwen/coder")], 24, 500),
        ("codex", [a_request(100, 0, 1.0), a_request(9000, 8900, 1.0), a_request(1000, 0, None)], None, 0),
        ("codex", [a_request(1000, 0, 2500.0, model="other")], None, 0),
        ("zed", [a_request(1000, 0, 2500.0)], None, 0),
        ("codex", [], None, 0),
    ],
)
def test_the_wait_for_the_first_prompt_is_told_if_its_speed_was_measured(
    agent, requests, seconds, speed, url, capsys, monkeypatch
):
    monkeypatch.setitem(REQUESTS, "data", requests)
    assert main(["connect", agent, "--url", url]) == 0
    said = capsys.readouterr().err
    if seconds is None:
        assert said == ""
    else:
        assert f"tokens: {seconds} s here, at the {speed} tokens/s of an earlier prompt" in said
        assert "also after a restart" in said


def test_first_prompts_are_those_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    rows = dict(re.findall(r"^\| ([\w ]+)(?:, which [\w ]+)? \| (\d+,\d{3}) \|", page, re.MULTILINE))
    measured = {name.split()[0].lower(): int(count.replace(",", "")) for name, count in rows.items()}
    assert {name: measured[name] for name in FIRST_PROMPT_TOKENS} == FIRST_PROMPT_TOKENS


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_is_told_the_key(agent, url, capsys):
    assert main(["connect", agent, "--url", f"{url}/v1/", "--api-key", "right"]) == 0
    assert "right" in capsys.readouterr().out


@pytest.mark.parametrize("agent", FILES)
def test_a_new_file_holds_what_is_printed_and_is_for_its_owner_alone(agent, url, home, capsys):
    main(["connect", agent, "--url", url])
    printed = capsys.readouterr().out
    assert main(["connect", agent, "--url", url, "--write"]) == 0
    path = home / FILES[agent]
    assert path.read_text() in printed
    assert path.stat().st_mode & 0o777 == 0o600
    assert parsed(path)


@pytest.mark.parametrize(
    ("agent", "variable", "name"),
    [("codex", "CODEX_HOME", "config.toml"), ("claude", "CLAUDE_CONFIG_DIR", "settings.json")],
)
def test_a_folder_that_the_agents_own_variable_names_is_used(
    agent, variable, name, url, home, monkeypatch, capsys
):
    monkeypatch.setenv(variable, str(home / "elsewhere"))
    main(["connect", agent, "--url", url])
    assert f"# ~/elsewhere/{name}" in capsys.readouterr().out
    assert main(["connect", agent, "--url", url, "--write"]) == 0
    assert parsed(home / "elsewhere" / name)
    assert not (home / FILES[agent]).exists()
    assert main(["connect", agent, "--undo"]) == 0
    assert files(home) == {}


def test_opencodes_last_file_is_the_one_that_changes(url, home):
    folder = home / ".config/opencode"
    folder.mkdir(parents=True)
    text = '{\n  // mine\n  "model": "other/one",\n}\n'
    (folder / "opencode.jsonc").write_text(text)
    assert main(["connect", "opencode", "--url", url, "--write"]) == 0
    written = (folder / "opencode.jsonc").read_text()
    assert "// mine" in written
    assert '"model": "local_reprise/qwen/coder"' in written
    assert not (folder / "opencode.json").exists()
    assert main(["connect", "opencode", "--undo"]) == 0
    assert files(home) == {folder / "opencode.jsonc": text.encode()}


def test_undo_finds_what_was_written_before_the_place_changed(url, home, monkeypatch):
    assert main(["connect", "opencode", "--url", url, "--write"]) == 0
    later = home / ".config/opencode/opencode.jsonc"
    later.write_text("{}")
    assert main(["connect", "codex", "--url", url, "--write"]) == 0
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    for agent in ("opencode", "codex"):
        assert main(["connect", agent, "--undo"]) == 0
    assert files(home) == {later: b"{}"}


@pytest.mark.parametrize("agent", FILES)
def test_writing_twice_changes_nothing_the_second_time(agent, url, home, capsys):
    main(["connect", agent, "--url", url, "--write"])
    before = (home / FILES[agent]).read_text()
    capsys.readouterr()
    assert main(["connect", agent, "--url", url, "--write"]) == 0
    assert (home / FILES[agent]).read_text() == before
    out = capsys.readouterr().out
    assert "+" not in out
    assert "up to date" in out


HELD = {
    "codex": '# mine\nmodel = "old" # old\napproval_policy = "never"\n\n[mcp_servers.docs]\ncommand = "d"\n',
    "claude": '{"permissions": {"allow": ["Bash(ls)"]}, "env": {"EDITOR": "vi", "ANTHROPIC_MODEL": "old"}}',
    "opencode": '{"theme": "dark", "provider": {"other": {"npm": "x"}}}',
    "aider": "dark-mode: true\nmodel: old\n",
    "continue": "name: Mine\nversion: 2.0.0\nschema: v1\nmodels:\n"
    "- name: Other\n  model: m\n- name: Reprise\n  model: old\n",
    "zed": '{"vim_mode": true, "agent": {"enabled": true}}',
    "pi": '{"providers": {"ollama": {"models": [{"id": "a"}]}}}',
    "crush": '{"options": {"debug": true}, "models": {"large": {"provider": "p", "model": "m"}}}',
    "goose": "GOOSE_MODE: auto\nGOOSE_MODEL: old\n",
    "openclaw": '{"agents": {"defaults": {"workspace": "~/w", "model": {"fallbacks": ["a/b"]}}}}',
    "kimi": '# mine\ntelemetry = false\n\n[providers."managed:kimi-code"]\ntype = "kimi"\n',
    "droid": '{"theme": "x", "customModels": [{"displayName": "Other", "model": "m"}]}',
}


@pytest.mark.parametrize("agent", FILES)
def test_everything_else_in_a_file_stays_and_the_difference_is_shown(agent, url, home, capsys):
    path = home / FILES[agent]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HELD[agent])
    before = parsed(path)
    assert main(["connect", agent, "--url", url, "--write"]) == 0
    out = capsys.readouterr().out
    after = parsed(path)
    assert "qwen/coder" in path.read_text()
    assert kept(before, after)
    assert f"--- {path}" in out
    assert "+" in out


def kept(before: dict, after: dict) -> bool:
    """Whether everything of before is in after, but what holds the model that was chosen before."""
    changed = {"model", "ANTHROPIC_MODEL", "GOOSE_MODEL", "models", "provider", "customModels"}
    return all(
        kept(value, after[key]) if isinstance(value, dict) else key in changed or after[key] == value
        for key, value in before.items()
    )


def test_a_toml_file_keeps_its_comments_and_its_other_lines(url, home):
    path = home / FILES["codex"]
    path.parent.mkdir()
    path.write_text(HELD["codex"])
    main(["connect", "codex", "--url", url, "--write"])
    assert path.read_text() == (
        '# mine\nmodel = "qwen/coder" # old\napproval_policy = "never"\nmodel_provider = "local_reprise"\n'
        'model_context_window = 40000\n\n[mcp_servers.docs]\ncommand = "d"\n\n'
        f'[model_providers.local_reprise]\nname = "Reprise"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    )


@pytest.mark.parametrize(
    "before",
    [
        HELD["codex"],
        '[model_providers]\nlocal_reprise = {name = "x", env_key = "y"} # mine\n',
        'model_providers.local_reprise.env_key = "y"\nmodel_providers.other.env_key = "z"\n',
    ],
)
def test_codex_is_told_no_variable_once_the_server_needs_no_key(before, url, home):
    path = home / FILES["codex"]
    path.parent.mkdir()
    path.write_text(before)
    assert main(["connect", "codex", "--url", url, "--api-key", "right", "--write"]) == 0
    assert parsed(path)["model_providers"]["local_reprise"]["env_key"] == "LOCAL_REPRISE_API_KEY"
    assert main(["connect", "codex", "--url", url, "--write"]) == 0
    assert "env_key" not in parsed(path)["model_providers"]["local_reprise"]


def test_kimi_is_told_that_the_next_model_cannot_call_tools(url, home, monkeypatch):
    assert main(["connect", "kimi", "--url", url, "--write"]) == 0
    monkeypatch.setitem(CARD, "tools", False)
    assert main(["connect", "kimi", "--url", url, "--write"]) == 0
    assert parsed(home / FILES["kimi"])["models"]["local_reprise"]["capabilities"] == []


def test_a_list_of_models_keeps_the_others_and_their_order(url, home):
    path = home / FILES["continue"]
    path.parent.mkdir()
    path.write_text(HELD["continue"])
    main(["connect", "continue", "--url", url, "--write"])
    after = parsed(path)
    assert (after["name"], after["version"]) == ("Mine", "2.0.0")
    assert [(one["name"], one["model"]) for one in after["models"]] == [
        ("Other", "m"),
        ("Reprise", "qwen/coder"),
    ]


@pytest.mark.parametrize(
    ("agent", "text", "reason"),
    [
        ("claude", '{"env": {"ANTHROPIC_MODEL": /* mine */ [1, /* x */ 2]}}', "would be lost"),
        ("claude", '{"env": {}', "it is not valid JSON"),
        ("claude", "[]", "it does not hold a table"),
        ("continue", "models:\n# mine\n- name: Other\n  model: m\n", "the comments in models would be lost"),
        ("aider", "a: [", "it is not valid YAML"),
        ("codex", "a = ", "it is not valid TOML"),
        ("continue", "x: 2024-02-30\n", "day is out of range"),
        ("claude", f'{{"a": {"1" * 5000}}}', "Exceeds the limit"),
        ("codex", "[[model_providers]] # mine\nx = 1\n", "its model_providers is no table"),
        ("claude", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "it is nested too deep"),
    ],
)
def test_a_file_that_would_lose_something_is_left_as_it_is(agent, text, reason, url, home, capsys):
    path = home / FILES[agent]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert main(["connect", agent, "--url", url, "--write"]) == 2
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1
    assert path.read_text() == text
    assert [one for one in home.rglob("*") if one.is_file()] == [path]


COMMENTED = {
    "zed": '{\n  // mine\n  "vim_mode": true, // yes\n  /* the rest */\n}\n',
    "claude": '{ // mine\n  "env": {\n    "EDITOR": "vi", // yes\n  },\n}\n',
    "aider": "# mine\ndark-mode: true # yes\nmodel: old # chosen\n# the rest\n",
    "continue": "# mine\nname: Mine # yes\nmodels:\n- name: Other\n  model: m\n\n# the rest\nx: 1\n",
}


@pytest.mark.parametrize("agent", COMMENTED)
def test_comments_and_all_other_lines_stay(agent, url, home):
    path = home / FILES[agent]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(COMMENTED[agent])
    assert main(["connect", agent, "--url", url, "--write"]) == 0
    text = path.read_text()
    assert "qwen/coder" in text
    for line in COMMENTED[agent].replace("model: old", "").splitlines():
        assert line.strip() in text


@pytest.mark.parametrize("agent", FILES)
def test_undo_puts_every_file_back_and_deletes_those_that_are_new(agent, url, home, capsys):
    path = home / FILES[agent]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HELD[agent])
    for _ in range(2):
        assert main(["connect", agent, "--url", url, "--write"]) == 0
    capsys.readouterr()
    assert main(["connect", agent, "--undo"]) == 0
    assert path.read_text() == HELD[agent]
    assert f"{path} is as it was before" in capsys.readouterr().out
    assert [one for one in home.rglob("*") if one.is_file()] == [path]
    assert main(["connect", agent, "--undo"]) == 1
    assert path.read_text() == HELD[agent]


@pytest.mark.parametrize("before", [HELD["claude"], None])
@pytest.mark.parametrize("writes_again", [False, True])
def test_what_others_wrote_since_is_kept_by_undo(before, writes_again, url, home, capsys):
    path = home / FILES["claude"]
    path.parent.mkdir()
    for name in ("settings.json.before-undo", "settings.json.before-undo2"):
        if before is not None:
            path.write_text(before)
        assert main(["connect", "claude", "--url", url, "--write"]) == 0
        path.write_text(path.read_text().replace("{", '{"hooks": {},', 1))
        if writes_again:
            assert main(["connect", "claude", "--url", url, "--model", "claude-sonnet-4-5", "--write"]) == 0
        held = path.read_text()
        assert main(["connect", "claude", "--undo"]) == 0
        assert f"{path.with_name(name)} holds what it held" in capsys.readouterr().out
        assert path.with_name(name).read_text() == held
        assert (path.read_text() if path.exists() else None) == before
    assert not list(path.parent.glob("*.before-reprise"))


@pytest.mark.usefixtures("home")
def test_it_says_so_when_the_model_is_the_demo(url, capsys, monkeypatch):
    assert main(["connect", "codex", "--url", url]) == 0
    assert "demo" not in capsys.readouterr().err
    monkeypatch.setitem(CARD, "id", "reprise-demo")
    assert main(["connect", "codex", "--url", url]) == 0
    assert "reprise-demo is a demo, too small for an agent's work" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_a_model_whose_context_is_unknown_has_to_be_loaded_first(url, capsys, monkeypatch):
    monkeypatch.setitem(CARD, "context_length", None)
    assert main(["connect", "codex", "--url", url]) == 2
    assert "run `reprise load qwen/coder`" in capsys.readouterr().err


def test_a_hash_within_a_value_is_no_comment(url, home):
    (home / ".aider.conf.yml").write_text('commit-prompt: "use #1"\n')
    assert main(["connect", "aider", "--url", url, "--write"]) == 0
    assert parsed(home / ".aider.conf.yml")["commit-prompt"] == "use #1"


def test_droid_keeps_its_other_models(url, home):
    path = home / FILES["droid"]
    path.parent.mkdir()
    path.write_text(HELD["droid"])
    for _ in range(2):
        main(["connect", "droid", "--url", url, "--write"])
    names = [(one["displayName"], one["model"]) for one in parsed(path)["customModels"]]
    assert names == [("Other", "m"), ("Reprise", "qwen/coder")]


@pytest.mark.parametrize(
    ("agent", "part"),
    [
        ("cline", "cline auth -p openai"),
        ("copilot", "export COPILOT_PROVIDER_BASE_URL=http://127.0.0.1"),
        ("vscode", '"url": "http://127.0.0.1'),
    ],
)
def test_some_agents_have_no_file_to_write(agent, part, url, home, capsys):
    assert main(["connect", agent, "--url", url, "--write"]) == 1
    assert part in capsys.readouterr().out
    assert list(home.iterdir()) == []


def test_an_agent_may_ask_by_another_name_if_the_server_answers_to_it(url, home, capsys):
    name = "claude-sonnet-4-5"
    assert main(["connect", "claude", "--url", url, "--served-model-name", name, "--write"]) == 0
    assert parsed(home / FILES["claude"])["env"]["ANTHROPIC_MODEL"] == name
    assert main(["connect", "claude", "--url", url, "--model", "gpt-5"]) == 2
    assert "start it with --served-model-name gpt-5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "{url}", "--api-key", "wrong"], "wants an API key: pass --api-key"),
        (["--url", "{url}/elsewhere"], "answers with status 404"),
        (["--url", "http://127.0.0.1:9"], "start `reprise serve`, or pass --url"),
        (["--url", "localhost"], "it must start with http:// or https://"),
    ],
)
@pytest.mark.usefixtures("home")
def test_without_a_server_one_line_says_why(arguments, message, url, capsys):
    assert main(["connect", "codex", *(one.replace("{url}", url) for one in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_keys_that_need_quotes_and_deep_tables_are_written_as_toml():
    text = set_toml("", {"a": {"b c": {"d.e": 'x"y', "n": 1}}})
    assert tomllib.loads(text) == {"a": {"b c": {"d.e": 'x"y', "n": 1}}}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a.x = 1 # one\n", "a.x = 2 # one\n"),
        ('"a" = {x = 1, y = 0}\n', '"a" = {x = 2, y = 0}\n'),
        ('k = """\n[a]\n"""\na = {}\n', 'k = """\n[a]\n"""\na = {x = 2}\n'),
        ("a = { x = 2 } # so\n", "a = { x = 2 } # so\n"),
    ],
)
def test_toml_is_edited_in_the_form_that_it_has(text, changed):
    assert set_toml(text, {"a": {"x": 2}}) == changed


@pytest.mark.parametrize(
    ("agent", "text", "line"),
    [
        ("claude", b'{"s": "\\ud800"}', '"s": "\\ud800"'),
        ("claude", b'{"env": {"ANTHROPIC_MODEL": "\\ud800"}, "n": 1e400}', '"n": 1e400'),
        ("droid", b'{"customModels": [{"displayName": "Other", "model": "\\udfff"}]}', '"model": "\\udfff"'),
        ("claude", b'{\r\n  "s": 1\r\n}\r\n', '"s": 1\r\n}\r\n'),
        ("codex", b'# mine\r\na = """\r\n"""\r\n', '# mine\r\na = """\r\n"""\r\n'),
        ("continue", b"name: Mine\r\n# yes\r\n", "name: Mine\r\n# yes\r\n"),
        ("goose", b"a: 1", "a: 1\n"),
        ("claude", b"", ""),
        ("codex", b"\n", ""),
        ("claude", None, ""),
    ],
)
def test_every_byte_of_others_stays_and_comes_back(agent, text, line, url, home):
    path = home / FILES[agent]
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        path.write_bytes(text)
        path.chmod(0o644)
    assert main(["connect", agent, "--url", url, "--write"]) == 0
    written = path.read_bytes()
    assert line in written.decode()
    assert written.count(b"\n") == written.count(b"\r\n") or b"\r" not in written
    assert path.stat().st_mode & 0o777 == (0o600 if text is None else 0o644)
    assert main(["connect", agent, "--undo"]) == 0
    assert (path.read_bytes() if path.exists() else None) == text
    assert all(one == path for one in home.rglob("*") if one.is_file())


def files(home: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in home.rglob("*") if one.is_file()}


@pytest.mark.parametrize("num_writes", range(6))
@pytest.mark.parametrize("fault", ["full", "cut"])
def test_a_disk_that_fills_takes_nothing(num_writes, fault, url, home, capsys, monkeypatch):
    """Aider has two files: two backups, notes and texts are written. Each time another one fails."""
    paths = home / FILES["aider"], home / ".aider.model.metadata.json"
    before = {paths[0]: b"dark-mode: true\nmodel: old\n", paths[1]: b'{"mine": {}}'}
    for path, text in before.items():
        path.write_bytes(text)
    real, left = os.fsync, iter([True] * num_writes)

    def fsync(descriptor: int) -> None:
        if not S_ISREG(os.fstat(descriptor).st_mode) or next(left, False):
            real(descriptor)
        elif fault == "full":
            raise OSError(ENOSPC, "No space left on device")
        else:
            os.ftruncate(descriptor, 3)

    monkeypatch.setattr(os, "fsync", fsync)
    assert main(["connect", "aider", "--url", url, "--write"]) == 2
    assert "cannot write " in capsys.readouterr().err
    monkeypatch.setattr(os, "fsync", real)
    held = files(home)
    assert (held[paths[0]] == before[paths[0]], held[paths[1]]) == (num_writes < 5, before[paths[1]])
    assert len(held) == (2 if num_writes < 5 else 4)
    main(["connect", "aider", "--undo"])
    assert files(home) == before


def test_a_backup_that_was_cut_short_is_not_put_back(url, home, capsys):
    path = home / FILES["claude"]
    path.parent.mkdir()
    path.write_text(HELD["claude"])
    main(["connect", "claude", "--url", url, "--write"])
    backup = path.with_name("settings.json.before-reprise")
    backup.write_text(HELD["claude"][:20])
    held = files(home)
    assert main(["connect", "claude", "--undo"]) == 2
    assert f"{path} is left as it is: {backup} is not whole" in capsys.readouterr().err
    assert files(home) == held


def test_a_link_to_a_file_elsewhere_stays_a_link(url, home):
    path, target = home / FILES["claude"], home / "dotfiles" / "claude.json"
    for folder in (path.parent, target.parent):
        folder.mkdir()
    target.write_text(HELD["claude"])
    path.symlink_to(target)
    assert main(["connect", "claude", "--url", url, "--write"]) == 0
    assert "qwen/coder" in target.read_text()
    assert main(["connect", "claude", "--undo"]) == 0
    assert (path.readlink(), target.read_text()) == (target, HELD["claude"])


def test_a_file_that_its_owner_may_not_write_is_left_as_it_is(url, home, capsys):
    path = home / FILES["claude"]
    path.parent.mkdir()
    path.write_text(HELD["claude"])
    path.chmod(0o444)
    assert main(["connect", "claude", "--url", url, "--write"]) == 2
    assert "it may not be written" in capsys.readouterr().err
    assert files(home) == {path: HELD["claude"].encode()}
