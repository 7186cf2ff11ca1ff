"""The page's files: who gets them, with which headers, and that the libraries among them are as published."""

import hashlib
import posixpath
import re
from importlib.resources import files
from pathlib import Path
from typing import get_args

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.models import HeadKind
from reprise.server.app import create_app

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGE = Path(str(files("reprise.server"))) / "page"
VENDOR = PAGE / "vendor"


async def test_a_browser_gets_the_page_and_a_program_the_endpoints(client):
    page = await client.get("/", headers=BROWSER)
    assert page.headers["content-type"].startswith("text/html")
    assert page.content == (await client.get("/ui")).content
    assert "endpoints" in (await client.get("/", headers={"accept": "*/*"})).json()


async def test_all_files_that_the_page_names_are_there_and_no_others(client):
    asked, seen = ["/ui"], set()
    while asked:
        path = asked.pop()
        if path in seen:
            continue
        seen.add(path)
        response = await client.get(path)
        assert response.status_code == 200, path
        folder = path.rpartition("/")[0]
        if response.headers["content-type"].startswith("text/html"):
            asked += [f"/{name}" for name in re.findall(r'(?:src|href)="([^"]+)"', response.text)]
        elif "/vendor/" not in path:
            named = re.findall(r'(?:from |import\()"(\.[^"]+)"', response.text)
            asked += [posixpath.normpath(f"{folder}/{name}") for name in named]
        elif path.endswith(".css"):
            asked += [f"{folder}/{name}" for name in re.findall(r"url\(([^)]+\.woff2)\)", response.text)]
    assert len(seen) > 40
    for name in (
        "nothing.js",
        "files.py",
        "vendor/README.md",
        "vendor/LICENSES.txt",
        "vendor/katex/README.md",
        "../app.py",
        "%2e%2e/app.py",
    ):
        response = await client.get(f"/ui/{name}")
        assert response.status_code == 404, name
        assert response.json()["error"]["code"] in ("not_found", "unknown_url")


@pytest.mark.parametrize("head", get_args(HeadKind))
def test_every_kind_of_head_has_its_words_and_its_colour(head):
    for name, named in (
        ("reading/origins.js", f"  {head}: "),
        ("now/now.js", f"  {head}: "),
        ("style/reading.css", f".{head} "),
    ):
        assert f"\n{named}" in (PAGE / name).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("path", ["/ui", "/ui/main.js", "/ui/style/base.css", "/ui/icon.svg"])
async def test_nothing_else_may_run_or_be_asked_for(client, path):
    headers = (await client.get(path)).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


async def test_the_page_needs_no_key_and_what_it_shows_does(engine):
    app = create_app(engine, Settings(api_key=("a-secret-of-16-letters",)))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://a") as http,
    ):
        for path in ("/", "/ui", "/ui/main.js"):
            assert (await http.get(path, headers=BROWSER)).status_code == 200
        for path in ("/", "/v1/models", "/v1/requests", "/v1/connect", "/metrics", "/uix"):
            assert (await http.get(path)).status_code == 401
        # Only for the page itself does a browser need no key.
        assert (await http.get("/v1/models", headers=BROWSER)).status_code == 401


def test_libraries_are_as_their_packages_have_them():
    rows = re.findall(
        r"^\| (\S+) \|.*\| ([0-9a-f]{64}) \|$", (VENDOR / "README.md").read_text(), re.MULTILINE
    )
    held = {
        one.relative_to(VENDOR).as_posix(): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in VENDOR.rglob("*.*")
        if one.suffix in (".js", ".css", ".woff2")
    }
    assert dict(rows) == held
