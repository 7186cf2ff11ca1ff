"""`reprise bench report`: draw the --json results of other benchmarks as one HTML page.

Draw result documents, which benchmarks write with --json, as one HTML page with plots, tables, and sample
answers that show the source of each token. The page is one file and needs no network. Documents of several
machines or models can be combined.
"""

import argparse
import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader

from bench import document, options
from bench.page import sections, tuning
from bench.page.parts import Document, Part, label

SECTIONS = {
    "speedup": ("Speedup", "Speedup", sections.speedup),
    "parity": ("Parity", "Parity", sections.parity),
    "answers": ("The source of each token", "Tokens", sections.answers),
    "acceptance": ("Acceptance", "Acceptance", sections.acceptance),
    "costs": ("Cost curve", "Costs", sections.costs),
    "sweep": ("Settings", "Settings", tuning.sweep),
    "economics": ("When drafting pays", "Economics", tuning.economics),
    "translation": ("Across vocabularies", "Translation", sections.translation),
    "peers": ("Compared with others", "Peers", sections.peers),
    "serve": ("Servers under load", "Load", sections.serve),
    "replay": ("Replayed without a model", "Replay", sections.replay),
}
"""By id: the title, the name in the table of contents, and what yields the parts from a document."""

FOLDER = Path(__file__).parent


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
    found = [name for name in document.SECTIONS if any(name in one for one in arguments.documents)]
    kilobytes = arguments.html.stat().st_size / 1000
    print(f"{arguments.html}: {', '.join(found)}; {kilobytes:.0f} kB. Open it in any browser.")
    return 0


def _document(text: str) -> dict[str, Any]:
    try:
        return document.read(Path(text))
    except OSError as fault:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {fault.strerror}") from None
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None


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
    documents = json.loads(json.dumps(documents), parse_constant=lambda _: None)
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    script = f"{_vega()}\n{(FOLDER / 'page.js').read_text(encoding='utf-8')}"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    jinja = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return jinja.get_template("page.html").render(
        policy=policy, style=style, script=script, sections=_report(documents), documents=documents
    )


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which takes two seconds to put together."""
    # A script element ends at the first "</script", also inside a string.
    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return str(bundle).replace("</script", "<\\/script")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _report(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Return all sections that any document has data for; each has a variant for each of these."""
    names = _names(documents)
    found = []
    for section, (title, short, build) in SECTIONS.items():
        if section == "costs":
            drawn, parts = sections.costs(documents, names)
            variants = [_variant("", drawn, parts)]
        else:
            pairs = zip(names, documents, strict=True)
            variants = [_variant(name, [one], build(one)) for name, one in pairs]
        if variants := [one for one in variants if one["parts"]]:
            found.append({"id": section, "title": title, "short": short, "variants": variants})
    return found


def _variant(name: str, documents: Sequence[Document], parts: Iterable[Part]) -> dict[str, Any]:
    """Return the parts of a section; when, where and with which model their documents were measured."""
    measured = []
    for one in documents:
        machine, model = one.get("machine") or {}, one.get("model") or {}
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        with_model = f"; model {model['name']}" if model.get("name") else ""
        place = machine.get("cpu") or "an unknown machine"
        measured.append(f"Measured on {_day(one)} on {place}{cores}{with_model}.")
    return {"name": name, "measured": measured, "parts": list(parts)}


def _day(document: Document) -> str:
    return str(document.get("date") or "an unknown day")[:10]


def _names(documents: Sequence[Document]) -> list[str]:
    """Return a distinct name for each document: its machine, and properties that not all documents share."""
    rows = [
        {
            "cpu": (one.get("machine") or {}).get("cpu") or "unknown machine",
            "model": (one.get("model") or {}).get("name"), "day": _day(one),
            "benchmark": " ".join(str(one.get("command") or "").split()[2:3]),
        }
        for one in documents
    ]  # fmt: skip
    names = [row["name"] for row in label(rows, "name", "cpu", model="{}", day="{}", benchmark="{}")]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]
