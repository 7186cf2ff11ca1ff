"""No figure is quoted without a source: a table that `reprise bench all` wrote, or a command beside it."""

import json
import re

import pytest

from bench.run_all import FIGURES, PAGES, RECORD, ROOT, blocks, filled, record_of, table_of
from cli.main import main

COMMAND = re.compile(r"(?:reprise|`)\s?bench \w+|python -m bench\.\w+")
FIGURE = re.compile(r"\d+\.\d+(?! million)|\d+ %|\d+ (?:ms|s|tokens/s|MiB)\b")
RECORDS = json.loads((ROOT / RECORD).read_text()) if (ROOT / RECORD).exists() else {}


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


@pytest.mark.parametrize("page", PAGES)
def test_every_table_is_what_was_recorded_of_its_command(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text, RECORDS) == text, "run reprise bench all"


def test_every_figure_has_its_place_on_a_page():
    places = [name for page in PAGES for name in blocks((ROOT / page).read_text(encoding="utf-8"))]
    assert sorted(places) == sorted(one.name for one in FIGURES)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda one: one.name)
def test_every_command_can_be_parsed(figure, capsys):
    assert main(["bench", *figure.command.split(), *figure.quick.split(), "--nothing"]) == 2
    assert "unknown argument --nothing" in capsys.readouterr().err


def test_a_page_shows_the_figures_that_were_recorded():
    (figure,) = (one for one in FIGURES if one.name == "turns")
    turn = {"number": 1, "num_prompt_tokens": 2000, "num_cached_tokens": 0, "warm_ms": 10.4, "cold_ms": 20.0}
    machine = {"cpu": "a chip", "cores": 2, "system": "an OS", "mlx": "1", "mlx_lm": "2"}
    found = {
        "turns": [turn],
        "command": "reprise bench turns",
        "date": "2026-01-02T03:04",
        "machine": machine,
    }
    record = json.loads(json.dumps(record_of(figure, found)))
    page = filled("before\n<!-- figures: turns -->\nold\n<!-- end -->\nafter\n", {"turns": record})
    assert "| 1 | 2000 | 0 | 10 | 20 |\n" in page
    assert "`reprise bench turns`, 2026-01-02, a chip, 2 cores, an OS, mlx 1.\n<!-- end -->\nafter" in page
    assert table_of(figure, record) in page
    assert filled(page, {}) == page
