"""Draw result documents as a report, and take screenshots of it in light and dark.

    .venv/bin/python scripts/screenshots.py A.json [B.json ...]     writes docs/report-light.png and -dark.png

Needs a Chromium or Chrome. The pictures show the top of the page, or start at --section.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from chromium import browser

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


def main() -> None:
    """Write both screenshots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("documents", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "docs", help="folder for the pictures (default: docs)"
    )
    parser.add_argument("--name", default="report", help="start of the file names (default: report)")
    parser.add_argument("--section", help="start at this section instead of the top: answers, economics, ...")
    parser.add_argument(
        "--width", type=int, default=1100, help="width of the window in pixels (default 1100)"
    )
    parser.add_argument(
        "--height", type=int, default=1250, help="height of the picture in pixels (default 1250)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, browser() as page:
        report = Path(folder) / "report.html"
        write_page(report, [document.read(file) for file in options.documents])
        page.resize(options.width, options.height)
        page.open(report)
        if options.section:
            top = f"document.getElementById('{options.section}').getBoundingClientRect().top"
            page.run(f"scrollTo({{top: scrollY + {top} - 60, behavior: 'instant'}})")
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            page.run(DRAWN)
            file = options.folder / f"{options.name}-{scheme}.png"
            page.screenshot(file)
            print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
