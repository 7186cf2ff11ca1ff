"""Build Markdown tables."""

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *([escape_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def escape_cell(text: str) -> str:
    """Put text on one line and escape the pipes in it."""
    return " ".join(text.split()).replace("|", r"\|")
