"""docs/patches.md names every module that replaces what a library has, and only what exists."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("bench", "cli", "config", "drafters", "engine", "server")
LINES = (ROOT / "docs" / "patches.md").read_text(encoding="utf-8").splitlines()
ROWS = [
    [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]] for line in LINES if "`engine/" in line
]
REPLACES = re.compile(
    r"^ *(mx(\.\w+)+|\w+\.\w*dot_product_attention|[\w., ]+\.__(call|class)__|library\.\w+) = "
    r"|^ *sys\.modules\[.*\] = "
    r"|setattr\(\w+(\.\w+)*, name",
    re.MULTILINE,
)
"""How this project replaces what another module has."""


def test_every_module_that_replaces_something_is_named():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {str(one.relative_to(ROOT)) for one in files if REPLACES.search(one.read_text(encoding="utf-8"))}
    assert found == {where for _, (where, *_), *_ in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][0])
def test_what_is_replaced_and_what_notices_a_change_exist(row):
    replaced, _, _, tests = row
    for name in replaced:
        if re.match(r"(mlx|mlx_lm|transformers)\.", name):
            assert resolve_name(name)
    assert tests
    for path in tests:
        assert (ROOT / path).exists()
