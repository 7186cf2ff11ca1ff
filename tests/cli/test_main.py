import json
import os
import subprocess
import sys
import tomllib

import pytest

import reprise
from reprise.cli.bench import COMMANDS as BENCHMARKS
from reprise.cli.main import main
from reprise.config.settings import GROUPS, SETTINGS, Settings
from reprise.config.version import VERSION

COMMANDS = [
    "serve", "run", "ps", "load", "unload", "pull", "list", "rm", "convert", "info", "connect", "config",
    "cache", "bench", "verify", "service",
    "doctor",
]  # fmt: skip


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for variable in list(os.environ):
        if variable.startswith("REPRISE_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "200")


def printed(capsys, *arguments):
    """Run a command that succeeds and return what it wrote to stdout."""
    try:
        status = main(arguments)
    except SystemExit as left:  # argparse exits after --help
        status = left.code
    assert status == 0
    return capsys.readouterr().out


def test_without_arguments_it_says_in_ten_lines_what_to_do_next(capsys):
    lines = printed(capsys).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 110
    named = [line.split()[1] for line in lines if line.startswith("  reprise ")]
    assert named == ["doctor", "serve", "serve", "connect", "run", "service"]
    assert {*named} <= {*COMMANDS}


def test_help_names_every_command_and_shows_examples(capsys):
    out = printed(capsys, "--help")
    for command in COMMANDS:
        assert f"\n    {command} " in out
    assert out.count("\n  reprise serve") + out.count(" reprise config") == 3


@pytest.mark.parametrize("command", ["serve", "config"])
def test_help_all_has_every_setting_with_its_default_and_variable(capsys, command):
    out = " ".join(printed(capsys, command, "--help", "all").split())
    for known in SETTINGS.values():
        assert known.flag in out
        assert known.help in out
        assert f"Default: {known.default_text} ({known.variable})" in out


def test_help_names_every_setting_on_one_screen_and_explains_those_of_a_group(capsys):
    out = printed(capsys, "serve", "--help")
    assert len(out.splitlines()) <= 50
    for title, names in GROUPS.items():
        of_group = printed(capsys, "serve", "--help", title)
        assert len(of_group.splitlines()) <= 40, title
        for known in SETTINGS.values():
            assert f" {known.flag}" in out
            assert (known.help in " ".join(of_group.split())) is (known.name in names)


def test_help_takes_a_word_of_a_group_s_title_and_shows_all_groups_for_another_word(capsys):
    assert "--ngram-scope" in printed(capsys, "serve", "--help", "n-gram")
    assert "--draft-overhead TEXT" not in printed(capsys, "serve", "--help", "n-gram")
    assert printed(capsys, "serve", "-h", "no-such-group") == printed(capsys, "serve", "--help")


def test_version_names_what_a_bug_report_needs(capsys):
    assert reprise.__version__ == VERSION
    out = printed(capsys, "--version")
    for part in ["reprise ", "mlx ", "mlx-lm ", "Python "]:
        assert part in out


def test_config_prints_every_value_with_its_origin(capsys, monkeypatch, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("max_queue = 2\n")
    monkeypatch.setenv("REPRISE_MAX_ROWS", "4")
    out = printed(capsys, "config", "--config", str(file), "--port", "0")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "port = 0 # flag --port" in lines
    assert "max_rows = 4 # environment REPRISE_MAX_ROWS" in lines
    assert f"max_queue = 2 # file {file}" in lines
    assert 'host = "127.0.0.1" # default' in lines
    assert "# model is not set # default" in lines


def test_the_output_of_config_is_a_settings_file_with_the_same_values(capsys, tmp_path):
    given = [
        "--model",
        'C:\\odd "name"\t☃',
        "--served-model-name",
        "a",
        "--served-model-name",
        "b,c",
        "--draft-overhead",
        "0",
        "--exact",
        "--wedlm-entropy-threshold",
        "none",
    ]
    first = printed(capsys, "config", *given)
    file = tmp_path / "again.toml"
    file.write_text(first, encoding="utf-8")
    values = tomllib.loads(printed(capsys, "config", "--config", str(file)))
    assert values == tomllib.loads(first)
    assert values["served_model_name"] == ["a", "b", "c"]
    assert values["model"] == given[1]
    assert values["exact"] is True
    assert values["wedlm_entropy_threshold"] == "none"


def test_config_as_json_has_the_value_and_source_of_every_setting(capsys):
    table = json.loads(printed(capsys, "config", "--json", "--port", "0"))
    assert list(table) == list(SETTINGS)
    assert table["port"] == {"value": 0, "source": "flag", "name": "--port"}
    assert table["model"] == {"value": None, "source": "default", "name": ""}
    assert table["draft_overhead"]["value"] == Settings().draft_overhead


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_config_says_that_a_key_is_set_but_does_not_show_it(capsys, form):
    out = printed(capsys, "config", *form, "--api-key", "secret-one", "--api-key", "secret-two")
    assert "secret" not in out
    assert ("hidden" if form else "# api_key is set, but not shown") in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "--port", "70000"], "port is 70000; it must be between 0 and 65535 (set by --port)"),
        (["serve", "--port", "70000"], "port is 70000; it must be between 0 and 65535 (set by --port)"),
        (["serve", "--prot", "1"], "unknown argument --prot; did you mean --port?"),
        (["serve", "--prot=1"], "unknown argument --prot; did you mean --port?"),
        (["serve", "--max-row=1"], "unknown argument --max-row; did you mean --max-rows?"),
        (["serve", "model", "extra"], "unknown argument extra (see reprise serve --help)"),
        (["serve", "one", "--model", "two"], "two models are named: one, and --model two"),
        (["serve", "--port"], "argument --port: expected one argument (see reprise serve --help)"),
        (["conifg"], "unknown command conifg; did you mean config?"),
        (["xyzzy"], f"unknown command xyzzy; the commands are {', '.join(COMMANDS)}"),
        (["config", "--config", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
    ],
)
def test_an_invalid_command_line_prints_one_line_and_returns_status_2(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"reprise: {message}\n"


WITHOUT_EXTRAS = """
import sys
from importlib import util
extras = ("jinja2", "vl_convert")
sys.modules |= dict.fromkeys(extras)
found = util.find_spec
util.find_spec = lambda name: None if name in extras else found(name)
import reprise.cli.bench
from reprise.cli.main import main
for name in reprise.cli.bench.COMMANDS:
    try:
        main(["bench", name, "--help"])
    except SystemExit as left:
        assert left.code == 0
page = ("--html", "a.html")
for given in (["all", "--page", "a.json", *page], ["sweep", *page]):
    assert main(["bench", *given]) == 2
"""


def test_without_extras_help_works_and_the_command_that_installs_them_is_named():
    run = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("usage: reprise bench ") == len(BENCHMARKS)
    assert len(run.stderr.splitlines()) == 2
    for line in run.stderr.splitlines():
        assert line.startswith("reprise: jinja2 and vl_convert must be installed for this: run ")
        assert " pip install 'jinja2>=3.1' " in line
        assert "'vl-convert-python>=" in line


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"bench"}))
def test_help_of_every_command_is_printed(command, capsys):
    assert printed(capsys, command, "--help").startswith(f"usage: reprise {command}")


def test_help_loads_neither_server_nor_mlx():
    program = """
import sys
from reprise.cli.main import main
try:
    main(["serve", "--help"])
finally:
    print(sorted({"mlx", "mlx_lm", "fastapi", "uvicorn", "server", "engine", "bench"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines()[-1] == "[]"


def test_nothing_large_is_loaded_before_the_port_is_bound() -> None:
    code = (
        "import sys, reprise.server.run, reprise.engine.speculative.proposers, reprise.drafters.assembly\n"
        "print([name for name in ('mlx', 'mlx_lm', 'transformers') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
