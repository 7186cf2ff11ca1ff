"""Take the screenshots of the server's page for docs/. Needs a Chromium or Chrome.

    reprise serve &
    .venv/bin/python scripts/page_screenshots.py                docs/page-*.png

The answers are those of the server at --url, which has the bundled model. Only what the bundled model cannot
write, headings and formulas, is a conversation that is imported.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chromium import browser, open_tab, settle
from playwright.sync_api import Page

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDE = {"viewport": {"width": 1100, "height": 720}}
PHONE = {"viewport": {"width": 390, "height": 720}, "has_touch": True, "is_mobile": True}
PROMPT = """Change violin_feather from 41 to 8. Answer with the whole file.

```python
flute = 83
chapter_track = 66
violin_feather = 41

def update(mild, pigeon):
    weigh_harbor = pigeon * pigeon
    bottle_clover = pigeon * 2
    borrow = weigh_harbor + 51
    return bottle_clover + 71
```"""
"""An edit as the bundled model was trained on."""
ANSWER = r"""## The sum of the first numbers

Adding $1 + 2 + \dots + n$ gives

$$\sum_{k=1}^{n} k = \frac{n(n+1)}{2}$$

| n | by hand | by formula |
|--:|--------:|-----------:|
| 4 | 10 | 10 |
| 100 | a while | 5,050 |

```python
def total(n: int) -> int:
    # The sum of 1 to n.
    return n * (n + 1) // 2
```

- [x] for every $n \ge 0$
- [ ] for negative ones
"""
QUESTION = "How much is the sum of the first n numbers?"


ANSWERED = """
async (body) => {
  const options = { method: "POST", headers: { "Content-Type": "application/json" } };
  for (let left = 40; left; left--) {
    await fetch("v1/chat/completions", { ...options, body: JSON.stringify(body) }).then((got) => got.text());
    await new Promise((done) => setTimeout(done, 400 + 40 * (left % 7)));
  }
}
"""
"""Has a message answered again and again, for the chart."""


def main() -> None:
    """Write the screenshots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--folder", type=Path, default=DOCS, help="for the pictures (default: docs)")
    options = parser.parse_args()
    tall = {"viewport": {"width": 1000, "height": 820}}
    shots: list[tuple[str, Callable[[Page, str], None], str, dict[str, Any]]] = [
        ("light", show_race, "light", tall),
        ("dark", show_race, "dark", tall),
        ("chat", show_chat, "light", WIDE),
        ("reading", show_reading, "dark", tall),
        ("now", show_now, "light", WIDE),
        ("phone", show_chat, "dark", PHONE),
    ]
    with browser() as started:
        for name, show, scheme, size in shots:
            page = open_tab(started, color_scheme=scheme, **size).page
            show(page, options.url)
            settle(page)
            file = options.folder / f"page-{name}.png"
            page.screenshot(path=file)
            print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
            page.context.close()


def ask(page: Page, text: str) -> None:
    """Send a message and wait for the end of its answer."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator("article.assistant .figures").last.wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for()


def show_race(page: Page, url: str) -> None:
    """Let the server answer with and without drafts, twice: the first time it measures what steps cost."""
    page.goto(f"{url}/ui#race")
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    for _ in range(2):
        page.locator(".composer").get_by_role("button", name="Race").click()
        page.locator(".verdict:empty").wait_for(state="attached")
        page.get_by_text("The texts are").wait_for()


def show_chat(page: Page, url: str) -> None:
    """Show the answer to an edit, coloured by the sources of its tokens, beside earlier conversations."""
    page.goto(url)
    page.locator(".sample").nth(1).click()
    page.locator("article.assistant .figures").wait_for()
    # The other button for it is that of a phone, where the list is hidden.
    begin = page.locator("button", has_text="New").locator("visible=true").first
    begin.click()
    page.get_by_label("Show sources").check()
    ask(page, PROMPT)


def show_reading(page: Page, url: str) -> None:
    """Import a conversation whose answer has headings and formulas, and show it."""
    messages = [
        {"id": "1", "parent": None, "role": "user", "content": QUESTION},
        {"id": "2", "parent": "1", "role": "assistant", "content": ANSWER, "end": "done"},
    ]
    page.goto(url)
    page.locator(".sample").first.wait_for()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"format": "reprise-chats", "version": 1, "chats": [{"messages": messages}]}, file)
        file.flush()
        page.get_by_label("Import conversations").set_input_files(file.name)
        page.locator(".katex-display").wait_for()
    page.get_by_role("button", name="Close", exact=True).click()
    page.evaluate("document.fonts.ready.then(() => true)")


def show_now(page: Page, url: str) -> None:
    """Show the page's live figures while answers come one after the other."""
    page.goto(f"{url}/ui#now")
    page.locator(".chart polyline").wait_for(state="attached")
    body = {"model": "reprise-demo", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    page.evaluate(ANSWERED, body)


if __name__ == "__main__":
    main()
