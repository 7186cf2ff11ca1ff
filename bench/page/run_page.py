"""`reprise bench report`: draw the --json results of other benchmarks as one HTML page.

Draw result documents, which benchmarks write with --json, as one HTML page with plots, tables, and sample
answers that show the source of each token. The page is one file and needs no network. Documents of several
machines or models can be combined.
"""

import argparse
import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert

from bench import document, options
from bench.page.sections import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench report` to the parser."""
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


FOLDER = Path(__file__).parent
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write a page that shows all sections of the documents.

    documents: as bench.document.read returns them; if several have the same section, the reader chooses one.
    Raises OSError if the file cannot be written, ValueError without documents.
    """
    path.write_text(page(documents), encoding="utf-8")


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as HTML. Raises ValueError if there is no document."""
    if not documents:
        raise ValueError("a report needs at least one document")
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    script = f"{_vega()}\n{(FOLDER / 'page.js').read_text(encoding='utf-8')}"
    filled = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "report": _embedded(report(documents)),
    }
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    # A single pass, so that placeholders inside documents are not filled.
    return _PLACE.sub(lambda place: filled[place[1]], template)


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which takes two seconds to put together."""
    # A script element ends at the first "</script", also inside a string.
    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return str(bundle).replace("</script", "<\\/script")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _embedded(value: Any) -> str:
    """Return JSON that is safe in a script element: its text cannot end the element or open a comment."""
    # Numbers that JSON does not have (nan, infinities) become null.
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    text = json.dumps(finite, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
