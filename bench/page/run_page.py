"""`reprise bench report`: result documents as one page."""

import argparse
from pathlib import Path
from typing import Any

from bench import argument_types, document
from bench.page.assembly import write_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench report` takes."""
    parser.description = (
        "Draw result documents, which the benchmarks write with --json, as one HTML page: plots, tables and "
        "each answer with every token's origin. The page is one file that needs no network. Documents of "
        "several machines or models can be given together; what they share is shown side by side."
    )
    parser.add_argument("documents", nargs="+", type=_document, metavar="FILE.json")
    parser.add_argument(
        "--html", required=True, type=argument_types.output_file, metavar="FILE", help="Where the page goes."
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page, say so, and return the exit status."""
    write_page(arguments.html, arguments.documents)
    sections = [name for name in document.SECTIONS if any(name in one for one in arguments.documents)]
    kilobytes = arguments.html.stat().st_size / 1000
    print(f"{arguments.html}: {', '.join(sections)}; {kilobytes:.0f} kB. Open it in any browser.")
    return 0


def _document(text: str) -> dict[str, Any]:
    try:
        return document.read(Path(text))
    except OSError as fault:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {fault.strerror}") from None
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None
