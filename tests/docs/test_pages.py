"""The documentation: every link has a target, every flag exists, and the README stays short."""

import re
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import yaml

from reprise.cli.main import main

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "demo_model/**", "drafters", "engine/**", "examples", "server")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
README = ROOT / "README.md"
MAX_LINES = {"README.md": 120, "docs/results.md": 150, "drafters/README.md": 300, "engine/README.md": 300}
MAX_WORDS = 25_000
"""Words of all pages that people write, those of generated pages apart."""
GENERATED = {"api.md", "architectures.md", "macs.md", "metrics.md", "models.md", "settings.md"}
OTHER_FLAGS = {
    "--auto-setup",
    "--backend",
    "--build-arg",
    "--basetemp",
    "--calibration-file",
    "--cuda",
    "--force",
    "--from",
    "--gpus",
    "--homepage",
    "--hostfile",
    "--no-deps",
    "--output",
    "--over",
    "--prepare",
    "--reinstall",
    "--rm",
    "--slow",
    "--url",
    "--user",
    "--version",
    "--wheel",
}
"""Flags of the scripts, of other programs, of `reprise` itself, and of earlier versions in CHANGELOG.md."""
PAGES_WITH_FLAGS = [page for page in PAGES if page.parent in (ROOT, ROOT / "docs")]
FLAG = r"(?<![\w-])--[a-z][a-z-]+"


@cache
def read(page):
    """Return a page without its fenced code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def name(page):
    return str(page.relative_to(ROOT))


def anchors(page):
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", read(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    """Return the relative links of a page, in Markdown and in HTML."""
    found = re.findall(r"\]\(([^)\s]+)\)", read(page))
    found += re.findall(r'(?:src|srcset|href)="([^"]+)"', read(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", MAX_LINES)
def test_pages_that_many_read_are_short(page):
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= MAX_LINES[page]


def test_the_pages_that_people_write_can_be_read_in_an_evening():
    pages = [README, ROOT / "drafters" / "README.md", ROOT / "engine" / "README.md"]
    pages += [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MAX_WORDS
    assert len((ROOT / "docs" / "tried.md").read_text(encoding="utf-8").split()) <= 2_500


def test_the_readme_links_to_every_page():
    engine = ROOT / "engine" / "README.md"
    listing = (README, engine, ROOT / "demo_model" / "README.md")
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in listing for link in links(page)}
    assert set(PAGES) - {README} <= linked
    assert engine in {(ROOT / link).resolve() for link in links(README)}


def named_in(nav):
    """Return the pages that a part of mkdocs.yml's nav names, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in named_in(part)]


def test_the_site_has_every_page_once():
    # BaseLoader reads the name of a function as text; mkdocs itself is not installed here.
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)
    assert sorted(named_in(site["nav"])) == sorted(name(page) for page in PAGES)
    assert site["strict"] == "true", "a broken link must fail"


def test_pages_call_the_command_reprise_and_the_readme_names_the_script_once():
    assert README.read_text(encoding="utf-8").count("./scripts/serve") == 1
    others = [page for page in PAGES if page not in (README, ROOT / "CHANGELOG.md")]
    assert [name(page) for page in others if "./scripts/serve" in page.read_text(encoding="utf-8")] == []


def help_of(*command):
    with redirect_stdout(StringIO()) as out, suppress(SystemExit):
        main([*command, "--help", *(["all"] if command in (("serve",), ("config",)) else [])])
    return out.getvalue()


@cache
def command_flags():
    """Return every flag of every command."""
    benchmarks = re.findall(r"^    (\w+)", help_of("bench"), re.MULTILINE)
    texts = [help_of("serve"), help_of("connect"), help_of("cache"), help_of("config"), help_of("verify")]
    texts += [help_of(one) for one in ("list", "doctor", "convert", "run", "ps", "load")]
    texts += [help_of("service", action) for action in ("install", "logs")]
    texts += [help_of("bench", benchmark) for benchmark in benchmarks]
    return set(re.findall(FLAG, "".join(texts)))


@pytest.mark.parametrize("page", PAGES_WITH_FLAGS, ids=name)
def test_every_flag_that_a_page_names_exists(page):
    assert set(re.findall(FLAG, page.read_text(encoding="utf-8"))) - OTHER_FLAGS <= command_flags()
