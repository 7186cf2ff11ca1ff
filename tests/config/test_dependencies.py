"""What the product imports is installed with it; only `reprise bench` needs an extra."""

import re
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)


def names(requirements: list[str]) -> set[str]:
    """Return the packages that requirements name without any extra."""
    return {
        re.split(r"[\[<>=;~! (]", one)[0].lower().replace("_", "-")
        for one in requirements
        if "extra ==" not in one
    }


def with_theirs(packages: set[str]) -> set[str]:
    """Return packages with all that are installed because of them."""
    found, left = set[str](), [*packages]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            with suppress(PackageNotFoundError):
                left += names(requires(one) or [])
    return found


@pytest.mark.parametrize("package", ["cli", "server", "engine", "drafters", "config", "bench"])
def test_every_package_that_is_imported_is_a_dependency(package: str) -> None:
    known = names(PROJECT["dependencies"])
    if package == "bench":
        known |= names(PROJECT["optional-dependencies"]["bench"])
    known, owners = with_theirs(known), packages_distributions()
    found: dict[str, set[str]] = {}
    for file in (ROOT / package).rglob("*.py"):
        for module in {*IMPORTED.findall(file.read_text())} - sys.stdlib_module_names - {"reprise"}:
            if module in owners:
                found.setdefault(module, names(owners[module]))
    assert [module for module, owned_by in found.items() if not owned_by & known] == []
    assert found


def test_no_extra_is_needed_to_see() -> None:
    assert "pillow" in names(PROJECT["dependencies"])
    assert sorted(PROJECT["optional-dependencies"]) == ["bench", "cuda", "dev", "train"]
