"""The page in a real browser, with an engine that says what a test wants."""

import pytest
from chromium import open_tab
from playwright.sync_api import expect

# A busy machine is slow; a claim that is false stays so.
expect.set_options(timeout=60_000)


@pytest.fixture
def open_page(chrome, url):
    """Opens the page with storage of its own. Nothing may fail in it, or be asked for elsewhere."""
    opened = []

    def open_at(address=url, path="/", **context):
        tab = open_tab(chrome, permissions=["clipboard-read", "clipboard-write"], **context)
        opened.append((tab, address))
        tab.page.goto(f"{address}{path}")
        return tab.page

    yield open_at
    for tab, address in opened:
        refused = "Failed to load resource"
        assert [text for text in tab.complaints if not text.startswith(refused)] == []
        assert [one for one in tab.requests if not one.startswith(f"{address}/")] == []
        tab.page.context.close()
