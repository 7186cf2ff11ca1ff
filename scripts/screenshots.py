"""Take the screenshots of docs/, in light and dark. Needs a Chromium or Chrome.

    .venv/bin/python scripts/screenshots.py report A.json [B.json ...]    docs/report-light.png and -dark.png
    .venv/bin/python scripts/screenshots.py page                          docs/page-light.png and -dark.png

A report is shown from its top, or from --section. The page is that of a server that runs at --url, by
default the bundled model's, after a race.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from chromium import Page, browser, open_tab, settle

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import document  # noqa: E402
from bench.page import write_page  # noqa: E402

DRAWN = """
new Promise((done) => {
  const isDrawn = (chart) => chart.querySelector("svg path");
  const areDrawn = () => [...document.querySelectorAll(".chart")].every(isDrawn);
  const look = () => setTimeout(...(areDrawn() ? [done, 500] : [look, 20]));
  look();
})
"""
"""Resolves half a second after every chart has marks."""
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


def main() -> None:
    """Write the screenshots of a report or of the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="for the pictures (default: docs)")
    parser.add_argument("--width", type=int, default=1100, help="of the window in pixels (default 1100)")
    parser.add_argument("--height", type=int, help="of the pictures in pixels (default: 1250, page: 900)")
    kinds = parser.add_subparsers(dest="kind", required=True)
    report = kinds.add_parser("report")
    report.add_argument("documents", nargs="+", type=Path, metavar="FILE.json")
    report.add_argument("--section", help="start at this section instead of the top: answers, economics, ...")
    page = kinds.add_parser("page")
    page.add_argument("--url", default="http://127.0.0.1:8000")
    options = parser.parse_args()
    height = options.height or {"report": 1250, "page": 850}[options.kind]
    with browser() as started:
        tab = open_tab(started, viewport={"width": options.width, "height": height})
        {"report": show_report, "page": show_race}[options.kind](tab.page, options)
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            settle(tab.page)
            tab.page.evaluate(DRAWN)
            file = options.folder / f"{options.kind}-{scheme}.png"
            tab.page.screenshot(path=file)
            print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def show_report(page: Page, options: argparse.Namespace) -> None:
    """Draw the documents as a report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        write_page(report, [document.read(file) for file in options.documents])
        page.goto(report.as_uri())
    if options.section:
        top = f"document.getElementById('{options.section}').getBoundingClientRect().top"
        page.evaluate(f"scrollTo({{top: scrollY + {top} - 60, behavior: 'instant'}})")


def show_race(page: Page, options: argparse.Namespace) -> None:
    """Let the server answer with and without drafts, twice: the first time it measures what steps cost."""
    page.goto(f"{options.url}/ui#race")
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    for _ in range(2):
        page.get_by_role("button", name="Race").click()
        page.get_by_text("The texts are").wait_for()


if __name__ == "__main__":
    main()
