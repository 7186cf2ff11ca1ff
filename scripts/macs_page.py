"""Add a Mac's figures to docs/macs.md, from the block that `reprise doctor --share` prints there.

    python scripts/macs_page.py [BLOCK.txt]    # without a file it writes the page again

A block that was not measured on a Mac, whose answers differ with drafts, or that lacks a figure is refused.
"""

import json
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, ROWS = ROOT / "docs" / "macs.md", ROOT / "scripts" / "macs.json"
TASKS = ("edits", "quotes", "chat")

ABOUT = """# Measured on Macs

What owners of Macs measured with `reprise doctor --share --model NAME`: tokens a second without and with
drafts, for an edited file, a quoted sentence and a chat, and the seconds until the first token of a prompt of
8,192 tokens (or of 1,024, where it says so). A row is of one machine, one model and one run. Drafts changed
no token of its answers, or it would not be here. To add yours, paste what the command prints into an issue.
`scripts/macs_page.py` makes this page.
"""
NONE_YET = "\n**There is no row yet**: nobody has measured on a Mac so far.\n"
HEAD = (
    "\n| Mac | memory | model | weights | edits | quotes | chat | first token | Reprise | date |\n"
    + "|---" * 10
    + "|\n"
)


class BlockError(ValueError):
    """A block cannot be added; the message says why."""


def read_block(text: str) -> dict[str, Any]:
    """Return the row of the page that a block of `reprise doctor --share` makes. Raises BlockError."""
    found = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        block = json.loads(found[0] if found else text)
        return _row_of(block)
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as fault:
        if isinstance(fault, BlockError):
            raise
        raise BlockError(f"it is not what `reprise doctor --share` prints: {fault!r}") from fault


def _row_of(block: dict[str, Any]) -> dict[str, Any]:
    device, model, speeds = str(block["device"]["name"]), block["model"], block["speeds"]
    if not (device.startswith("Apple ") and "Metal" in device):
        raise BlockError(f"it was measured on {device}, not on a Mac's Metal")
    if model["source"] in ("a folder", "bundled"):
        raise BlockError("its model has no name on the hub: measure one with --model ORG/NAME")
    if not block["answer"]["is_equal"] or not all(speeds[task]["is_equal"] for task in TASKS):
        raise BlockError("its answers differ with drafts; that is a bug to report, not a row")
    day = datetime.fromisoformat(block["date"]).date()
    if day > datetime.now(UTC).date():
        raise BlockError(f"its date {day} is in the future")
    figures = [[float(speeds[task][f"{way}_tokens_per_s"]) for way in ("plain", "drafted")] for task in TASKS]
    first = [int(block["first_token"]["num_prompt_tokens"]), float(block["first_token"]["seconds"])]
    if not all(0 < figure < 100_000 for row in (*figures, first) for figure in row):
        raise BlockError("one of its figures is impossible")
    return {
        "mac": device.removesuffix(" (Metal)"),
        "memory_gb": round(block["machine"]["memory_bytes"] / 2**30),
        "model": model["source"],
        "weights": str(model["dtype"]),
        "figures": figures,
        "first_token": first,
        "reprise": str(block["machine"]["reprise"]),
        "date": str(date.fromisoformat(str(day))),
    }


def write_page(rows: list[dict[str, Any]], page: Path = PAGE) -> None:
    """Write the page with these rows, by Mac, memory and model."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["mac"], row["memory_gb"], row["model"], row["date"])):
        speeds = [f"{plain:.3g} -> {drafted:.3g}" for plain, drafted in row["figures"]]
        num, seconds = row["first_token"]
        first = f"{seconds:.1f} s" + ("" if num == 8192 else f" ({num:,} tokens)")
        cells = (row["mac"], f"{row['memory_gb']} GB", row["model"], row["weights"], *speeds, first)
        lines.append("| " + " | ".join(map(str, (*cells, row["reprise"], row["date"]))) + " |\n")
    page.write_text(ABOUT + (HEAD + "".join(lines) if lines else NONE_YET), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Add the block in the named file, if any, and write the page."""
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    if arguments:
        try:
            rows.append(read_block(Path(arguments[0]).read_text(encoding="utf-8")))
        except BlockError as fault:
            sys.exit(f"macs_page: {arguments[0]} is not added: {fault}")
        ROWS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    write_page(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
