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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model", "the bundled demo model"),
        ("record", "none"),
        ("api_key", "none"),
        ("exact", "false"),
        ("draft_overhead", "0.02"),
        ("prefix_cache_dir", "auto"),
    ],
)
def test_a_default_reads_as_people_write_it(name, text):
    assert SETTINGS[name].default_text == text
