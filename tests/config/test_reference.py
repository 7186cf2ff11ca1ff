"""docs/settings.md and the help have every setting, and say what the code says."""

import re
from itertools import chain

import pytest

from reprise.config.reference import PAGE, write_settings
from reprise.config.settings import GROUPS, SETTINGS


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8") == write_settings(), (
        "run .venv/bin/python -m reprise.config.reference"
    )


def test_every_setting_is_in_one_group_in_the_order_of_declaration():
    assert list(chain.from_iterable(GROUPS.values())) == list(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_row_with_flag_variable_default_and_meaning(name):
    known = SETTINGS[name]
    rows = [line for line in write_settings().splitlines() if line.startswith(f"| `{known.flag}` |")]
    assert len(rows) == 1
    _, _, variable, default, meaning, _ = re.split(r"(?<!\\)\|", rows[0])
    assert variable.strip() == f"`{known.variable}`"
    assert default.strip()
    assert meaning.strip().startswith(known.help.replace("|", r"\|"))


def test_the_page_does_not_depend_on_whose_machine_makes_it():
    # conftest.py sets XDG_CACHE_HOME, so the default of this process is another one.
    assert "`~/.cache/reprise/step_costs.json`" in write_settings()
    assert SETTINGS["costs_file"].default_text not in write_settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model", "the bundled demo model"),
        ("record", "none"),
        ("api_key", "none"),
        ("exact", "false"),
        ("drain_s", "10"),
        ("draft_overhead", "0.02"),
        ("max_body_bytes", "33554432 (32 MiB)"),
        ("record_bytes", "1073741824 (1 GiB)"),
    ],
)
def test_a_default_reads_as_people_write_it(name, text):
    assert SETTINGS[name].default_text == text
