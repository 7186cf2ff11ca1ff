"""`reprise bench report`: draw result documents as one HTML page."""

import argparse
from pathlib import Path
from typing import Any

from bench import document, options
from bench.page.assembly import write_page

SUMMARY = "Draw the --json results of other benchmarks as one HTML page."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench report` to the parser."""
    parser.description = (
        "Draw result documents, which benchmarks write with --json, as one HTML page with plots, tables, and "
        "sample answers that show the source of each token. The page is one file and needs no network. "
        "Documents of several machines or models can be combined."
    )
    parser.add_argument(
        "documents", nargs="+", type=_document, metavar="FILE.json", help="Result documents to draw."
    )
    parser.add_argument(
        "--html", required=True, type=options.output_file, metavar="FILE", help="Page to write."
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page, print what it contains, and return the exit status."""
    write_page(arguments.html, arguments.documents)
    sections = [name for name in document.SECTIONS if any(name in one for one in arguments.documents)]
    kilobytes = arguments.html.stat().st_size / 1000
    print(f"{arguments.html}: {', '.join(sections)}; {kilobytes:.0f} kB. Open it in any browser.")
    return 0


def _document(text: str) -> dict[str, Any]:
    try:
        return document.read(Path(text))
    except OSError as fault:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {fault.strerror}") from None
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None
