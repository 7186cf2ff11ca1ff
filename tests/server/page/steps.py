"""What a reader does on the page, for tests of it."""

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from reprise.engine.interface.events import Delta, Event, PromptProgress
from tests.server.fake_engine import FakeEngine, Job, Script, wait_first


def send(page: Page, text: str, label: str = "Message") -> None:
    """Write something into the composer, and send it with Enter once it can be sent."""
    field = page.get_by_label(label, exact=True)
    field.fill(text)
    expect(page.locator(".composer button[type=submit]")).to_be_enabled()
    field.press("Enter")


def answers(page: Page) -> Locator:
    return page.locator("article.assistant")


def last_answer(page: Page) -> Locator:
    return answers(page).last


def ask(page: Page, text: str, answer: str) -> Locator:
    """Send something and wait for the end of the answer, which has some words; return it."""
    send(page, text)
    expect(last_answer(page)).to_contain_text(answer)
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    return last_answer(page)


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reads(*shares: float) -> Script:
    """Return a script that says how far the prompt is, waits to be released, and answers with it."""

    def tell(engine: FakeEngine, job: Job) -> Event:
        for share in shares:
            job.sink(Delta("", progress=PromptProgress(1000, 0, int(1000 * share), 0.5)))
        return wait_first(engine, job)

    return tell
