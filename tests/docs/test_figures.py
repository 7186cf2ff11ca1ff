"""No figure is quoted without a source: a table that `reprise bench all` wrote, or a command beside it."""

import re

import pytest

from reprise.bench import run_all
from reprise.bench.experiment import BenchError
from reprise.bench.run_all import PAGES, ROOT, RUNS, filled, table_of
from reprise.cli.main import main

COMMAND = re.compile(r"(?:reprise|`)\s?bench\s\w+|python -m bench\.\w+")
FIGURE = re.compile(
    r"\b(?!\d{4}\.\d{5})\d+\.\d+(?!\s[mb]illion)|\d+ %(?! interval)|\d+ (?:ms|s|tokens/s|MiB)\b"
)
DATE = re.compile(r"\d{4}-\d\d-\d\d")
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
TABLES = {name: table for one in RUNS.values() for name, table in one.tables.items()}


def sections(page):
    """Return the sections of a page by their headings; of the README, the one with figures."""
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    found = {part.splitlines()[0]: part for part in parts}
    return {"Figures": found["Figures"]} if page == "README.md" else found


@pytest.mark.parametrize(
    ("page", "heading"), [(page, heading) for page in PAGES for heading in sections(page)]
)
def test_every_section_with_figures_names_the_command_that_makes_them(page, heading):
    section = sections(page)[heading]
    if FIGURE.search(section):
        assert COMMAND.search(section), f"{page}, {heading}: figures without a command"


@pytest.mark.parametrize(
    ("page", "heading"), [(page, heading) for page in PAGES for heading in sections(page)]
)
def test_every_figure_that_no_table_was_made_of_has_a_date(page, heading):
    """Figures in sentences are not made again, so each paragraph says when it was true."""
    prose = BLOCK.sub("", sections(page)[heading])
    for paragraph in re.split(r"\n\n(?!\|)|\n(?=- )", prose):
        assert not FIGURE.search(paragraph) or DATE.search(paragraph), f"{page}, {heading}: {paragraph}"


@pytest.mark.parametrize("page", PAGES)
def test_every_table_is_made_by_a_run_and_names_its_command(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        assert found[1] in TABLES
        (command,) = [one.command for one in RUNS.values() if found[1] in one.tables]
        assert f"`reprise bench {command}`" in found[0]
        headings = found[0].splitlines()[1].strip("|").split("|")
        assert [one.strip() for one in headings] == [one.heading for one in TABLES[found[1]].columns]


def test_every_table_is_shown_once():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert sorted(BLOCK.findall(text)) == sorted(TABLES)


def test_the_whole_run_is_planned_to_take_an_hour_and_with_real_weights_one_more():
    real = [run.seconds for run in RUNS.values() if "smollm2" in run.command]
    assert sum(run.seconds for run in RUNS.values()) - sum(real) <= 3600
    assert sum(real) <= 3600


@pytest.mark.parametrize("name", RUNS)
def test_every_command_can_be_parsed(name, capsys):
    # The real model need not be there.
    words = RUNS[name].command.replace("smollm2", "demo_model").split()
    assert main(["bench", *words, "--nothing"]) == 2
    assert "unknown argument --nothing" in capsys.readouterr().err


def test_tables_of_models_that_nobody_has_made_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr(run_all, "is_lacking", lambda word: word == "smollm2")
    assert main(["bench", "all", "--only", "smollm2"]) == 0
    assert "smollm2: left out, there is no smollm2 (docs/benchmarks.md says how" in capsys.readouterr().err


MACHINE = {"cpu": "a chip", "cores": 2, "system": "an OS", "mlx": "1", "mlx_lm": "2"}
ROW = {"workload": "write plain", "pairs": 3, "tokens_per_forward": 2.0, "acceptance": 0.5, "curve": "M4"}
FOUND = {
    "replay": {
        "rows": [{"workload": "write plain", "pairs": 3, "tokens_per_forward": 2.0, "acceptance": 0.5}]
    },
    "command": "reprise bench replay",
    "date": "2026-01-02T03:04",
    "machine": MACHINE,
}


def test_a_page_shows_what_was_found():
    table = table_of(TABLES["agents"], FOUND)
    page = filled("before\n<!-- figures: agents -->\nold\n<!-- end -->\nafter\n", "agents", table)
    assert "| write plain | 3 | 2.0 | 50 % |\n" in page
    where = "2026-01-02, a chip, 2 cores, an OS, mlx 1."
    assert f"`reprise bench replay`, {where}\n<!-- end -->\nafter" in page
    assert filled(page, "real", table) == page


def test_a_run_keeps_what_was_made_before_a_command_failed(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    for page in PAGES:
        (tmp_path / page).write_text("<!-- figures: agents -->\n<!-- end -->\n")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)

    def document(command):
        if not command.startswith("replay --history"):
            raise BenchError("out of memory")
        return FOUND

    monkeypatch.setattr(run_all, "_document", document)
    assert main(["bench", "all", "--only", "agents,warm", "--html", str(tmp_path / "page.html")]) == 1
    assert "reprise bench all: out of memory" in capsys.readouterr().err
    assert "| write plain | 3 |" in (tmp_path / "README.md").read_text()
    assert "Replayed without a model" not in (tmp_path / "docs/results.md").read_text()
    assert "write plain" in (tmp_path / "page.html").read_text()
