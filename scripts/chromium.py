"""Open pages in an installed Chromium or Chrome, with Playwright, for tests and screenshots."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
TIMEOUT_MS = 60_000
"""How long to wait for anything. On an idle machine a page needs less than a second."""


def find_browser() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in [*found, *MAC] if path and Path(path).is_file()), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser and close it afterwards. Raises FileNotFoundError if none is installed."""
    path = find_browser()
    if path is None:
        raise FileNotFoundError("no Chromium or Chrome is installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield started
        finally:
            started.close()


@dataclass
class Tab:
    """A page, the addresses that it asked for, and the warnings, errors and exceptions in it."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def forget(self) -> None:
        """Clear the lists of requests and of complaints."""
        self.requests.clear()
        self.complaints.clear()


def open_tab(browser: Browser, **context: Any) -> Tab:
    """Open an empty page with storage of its own. context: options of Playwright's new_context()."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(TIMEOUT_MS)
    tab = Tab(page)
    page.on("request", lambda request: tab.requests.append(request.url))
    page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    page.on("console", lambda message: tab.complaints.append(message.text))
    return tab


def settle(page: Page) -> None:
    """Wait for two frames, after which a page fits its window."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
