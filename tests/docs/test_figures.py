"""No figure is quoted without a source: a table that `reprise bench all` wrote, or a command beside it."""

import json
import re

import pytest

from reprise.bench.experiment import BenchError
from reprise.bench.figures import run_all
from reprise.bench.figures.catalog import FIGURES, RUNS
from reprise.bench.figures.run_all import (
    PAGES,
    ROOT,
    command_of,
    entry_of,
    filled,
    read_entries,
    table_of,
)
from reprise.cli.main import main

COMMAND = re.compile(r"(?:reprise|`)\s?bench\s\w+|python -m bench\.\w+")
FIGURE = re.compile(
    r"\b(?!\d{4}\.\d{5})\d+\.\d+(?!\s[mb]illion)|\d+ %(?! interval)|\d+ (?:ms|s|tokens/s|MiB)\b"
)
DATE = re.compile(r"\d{4}-\d\d-\d\d")
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
RECORDS = read_entries()


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
def test_every_table_is_what_was_recorded_of_its_command(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text, RECORDS) == text, "run reprise bench all"


def test_the_recorded_figures_are_those_that_a_page_shows():
    places = [name for page in PAGES for name in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]
    assert set(places) <= set(FIGURES)
    assert sorted(places) == sorted(RECORDS)


def test_every_figure_is_made_by_one_run():
    assert sum(len(run.figures) for run in RUNS) == len(FIGURES)


def test_the_whole_run_is_planned_to_take_an_hour_and_with_real_weights_little_over_two_more():
    real = [run.seconds for run in RUNS if "models/" in run.command or "smollm2" in run.command]
    assert sum(run.seconds for run in RUNS) - sum(real) <= 3600
    assert sum(real) <= 2.1 * 3600


@pytest.mark.parametrize("made", RUNS, ids=lambda one: next(iter(one.figures)))
def test_every_command_can_be_parsed(made, capsys):
    # The folders of real models need not be there.
    words = re.sub(r"models/\S+", "demo_model", command_of(made, is_quick=True)).split()
    assert main(["bench", *words, "--nothing"]) == 2
    assert "unknown argument --nothing" in capsys.readouterr().err


def test_tables_of_models_that_nobody_has_made_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    assert main(["bench", "all", "--only", "pair"]) == 0
    assert "pair: left out, there is no models/gemma3 (docs/benchmarks.md says how" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


MACHINE = {"cpu": "a chip", "cores": 2, "system": "an OS", "mlx": "1", "mlx_lm": "2"}
TURN = {"turn": 1, "num_prompt_tokens": 2000.0, "num_cached_tokens": 0.0}
LEVELS = [TURN | {"name": "reprise-uncached", "ttft_ms": 20.0}, TURN | {"name": "reprise", "ttft_ms": 10.4}]
FOUND = {
    "serve": {"levels": LEVELS},
    "command": "reprise bench serve --by-turn",
    "date": "2026-01-02T03:04",
    "machine": MACHINE,
}
TURNS = FIGURES["turns"]


def test_a_page_shows_the_figures_that_were_recorded():
    record = json.loads(json.dumps(entry_of(TURNS, FOUND)))
    page = filled("before\n<!-- figures: turns -->\nold\n<!-- end -->\nafter\n", {"turns": record})
    assert "| 1 | 2,000 | 0 | 10 | 20 |\n" in page
    where = "2026-01-02, a chip, 2 cores, an OS, mlx 1."
    assert f"`reprise bench serve --by-turn`, {where}\n<!-- end -->\nafter" in page
    assert table_of(TURNS, record) in page
    assert filled(page, {}) == page


@pytest.fixture
def run_until(tmp_path, monkeypatch):
    """Return a function that runs `bench all` on pages in tmp_path, whose table "turns" alone succeeds."""
    (tmp_path / "docs").mkdir()
    for page in PAGES:
        (tmp_path / page).write_text("<!-- figures: turns -->\n<!-- end -->\n")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)

    def run(fault, *given):
        def document(command):
            if "--by-turn" not in command:
                raise fault
            return FOUND

        monkeypatch.setattr(run_all, "_document", document)
        return main(["bench", "all", *given])

    return run


def test_a_run_keeps_what_was_made_before_a_command_failed(run_until, tmp_path, capsys):
    assert run_until(BenchError("out of memory"), "--only", "turns,warm") == 1
    assert "reprise bench all: out of memory" in capsys.readouterr().err
    assert list(read_entries()) == ["turns"]
    assert "| 1 | 2,000 |" in (tmp_path / "README.md").read_text()


def test_a_run_drops_the_record_of_a_table_that_has_other_columns_by_now(run_until, tmp_path):
    old = entry_of(TURNS, FOUND) | {"cells": [["1", "2"]]}
    (tmp_path / "docs/figures.json").write_text(json.dumps({"turns": old, "warm": old}))
    assert run_until(BenchError("none"), "--only", "turns") == 0
    assert list(read_entries()) == ["turns"]


def test_an_interrupted_run_keeps_what_was_made_and_says_how_to_continue(run_until, tmp_path, capsys):
    run_until(KeyboardInterrupt, "--only", "turns,warm,wedlm", "--documents", str(tmp_path / "kept"))
    assert "continue with --only warm,wedlm" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["turns.json"]
    assert "| 1 | 2,000 |" in (tmp_path / "README.md").read_text()
