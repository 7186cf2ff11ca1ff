"""`reprise bench report`: draw the --json results of other benchmarks as one HTML page.

Draw result documents, which benchmarks write with --json, as one HTML page with plots, tables, and sample
answers that show the source of each token. The page is one file and needs no network. Documents of several
machines or models can be combined.
"""

import argparse
import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path

import vl_convert
from jinja2 import Environment, FileSystemLoader

from bench import document, options
from bench.page import sections, tuning
from bench.page.parts import Document

FOLDER = Path(__file__).parent
_JINJA = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True)
SECTIONS = {
    "Speedup": sections.speedup, "Parity": sections.parity, "The source of each token": sections.answers,
    "Acceptance": sections.acceptance, "Cost curve": sections.costs, "Settings": tuning.sweep,
    "When drafting pays": tuning.economics, "Across vocabularies": sections.translation,
    "Compared with others": sections.peers, "Servers under load": sections.serve,
    "Replayed without a model": sections.replay,
}  # fmt: skip
"""By title: what yields the parts of a section from a document; costs are those of several documents."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench report` to the parser."""
    parser.add_argument("documents", nargs="+", type=Path, metavar="FILE.json", help="Documents to draw.")
    parser.add_argument(
        "--html", required=True, type=options.output_file, metavar="FILE", help="Page to write."
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page, print what it contains, and return the exit status."""
    documents = [document.read(file) for file in arguments.documents]
    write_page(arguments.html, documents)
    found = [name for name in document.SECTIONS if any(name in one for one in documents)]
    kilobytes = arguments.html.stat().st_size / 1000
    print(f"{arguments.html}: {', '.join(found)}; {kilobytes:.0f} kB. Open it in any browser.")
    return 0


def write_page(path: Path, documents: Sequence[Document]) -> None:
    """Write a page that shows all sections of the documents.

    documents: as bench.document.read returns them; if several have the same section, the reader chooses one.
    Raises OSError if the file cannot be written, ValueError without documents.
    """
    path.write_text(page(documents), encoding="utf-8", errors="xmlcharrefreplace")


def page(documents: Sequence[Document]) -> str:
    """Return the page as HTML. Raises ValueError if there is no document."""
    if not documents:
        raise ValueError("a report needs at least one document")
    # Numbers that JSON does not have (nan, infinities) become null.
    finite = json.loads(json.dumps(documents), parse_constant=lambda _: None)
    numbers = (f" ({number})" if len(finite) > 1 else "" for number in count(1))
    named = {_origin(one) + number: one for one, number in zip(finite, numbers, strict=False)}
    found = []
    for title, build in SECTIONS.items():
        # All cost curves share one plot; elsewhere, the reader chooses a document.
        given = {", ".join(named): finite} if build is sections.costs else named
        drawn = {origin: [part for part in build(one) if part] for origin, one in given.items()}
        if variants := [(origin, parts) for origin, parts in drawn.items() if parts]:
            found.append((build.__name__, title, variants))
    script = f"{_vega()}\n{_text('page.js')}"
    return _JINJA.get_template("page.html").render(
        style=_text("page.css"), script=script, hash=_hash, sections=found, documents=finite
    )


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which takes two seconds to put together."""
    # A script element ends at the first "</script", also inside a string.
    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return str(bundle).replace("</script", "<\\/script")


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _origin(document: Document) -> str:
    day = str(document.get("date") or "an unknown day")[:10]
    return f"{day} on {sections.place(document)}"
