"""`python -m server.reference`: write docs/api.md anew, or what is given instead."""

import sys
from pathlib import Path

from server.reference.pages import write_reference

PAGE = Path(__file__).parents[2] / "docs" / "api.md"

if __name__ == "__main__":
    (Path(sys.argv[1]) if sys.argv[1:] else PAGE).write_text(write_reference(), encoding="utf-8")
