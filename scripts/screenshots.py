"""Take the screenshots of docs/, in light and dark. Needs a Chromium or Chrome.

    .venv/bin/python scripts/screenshots.py report A.json [B.json ...]    docs/report-light.png and -dark.png

A report is shown from its top, or from --section. Those of the page: scripts/page_screenshots.py.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from chromium import Page, browser, open_tab, settle

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from reprise.bench import document  # noqa: E402
from reprise.bench.page import write_page  # noqa: E402

DRAWN = """
new Promise((done) => {
  const isDrawn = (chart) => chart.querySelector("svg path");
  const areDrawn = () => [...document.querySelectorAll(".chart")].every(isDrawn);
  const look = () => setTimeout(...(areDrawn() ? [done, 500] : [look, 20]));
  look();
})
"""
"""Resolves half a second after every chart has marks."""


def main() -> None:
    """Write the screenshots of a report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="for the pictures (default: docs)")
    parser.add_argument("--width", type=int, default=1100, help="of the window in pixels (default 1100)")
    parser.add_argument("--height", type=int, help="of the pictures in pixels (default: 1250)")
    kinds = parser.add_subparsers(dest="kind", required=True)
    report = kinds.add_parser("report")
    report.add_argument("documents", nargs="+", type=Path, metavar="FILE.json")
    report.add_argument("--section", help="start at this section instead of the top: answers, pays, ...")
    options = parser.parse_args()
    height = options.height or 1250
    with browser() as started:
        tab = open_tab(started, viewport={"width": options.width, "height": height})
        show_report(tab.page, options)
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


if __name__ == "__main__":
    main()
