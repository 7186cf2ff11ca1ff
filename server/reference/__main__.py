"""Generate api.md and metrics.md in docs/ or a given folder: `python -m reprise.server.reference`."""

import sys
from pathlib import Path

from reprise.server.reference.api_page import write_api_page
from reprise.server.reference.metrics_page import write_metrics_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
API_PAGE = DOCS / "api.md"
METRICS_PAGE = DOCS / "metrics.md"

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else DOCS
    for page, write in ((API_PAGE, write_api_page), (METRICS_PAGE, write_metrics_page)):
        (folder / page.name).write_text(write(), encoding="utf-8")
