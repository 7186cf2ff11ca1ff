"""`python -m server.reference`: write docs/api.md and docs/metrics.md anew, or both into a given folder."""

import sys
from pathlib import Path

from server.reference.metrics_page import write_metrics
from server.reference.pages import write_reference

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "api.md"
METRICS_PAGE = DOCS / "metrics.md"

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else DOCS
    for page, write in ((PAGE, write_reference), (METRICS_PAGE, write_metrics)):
        (folder / page.name).write_text(write(), encoding="utf-8")
