"""`reprise bench report`: draw the --json results of other benchmarks as one HTML page.

The page has plots, tables, and sample answers that show the source of each token. It is one file and needs no
network. Documents of several machines or models can be combined.
"""

import argparse
import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from reprise.bench import document, options
from reprise.bench.page import sections
from reprise.bench.page.charts import Axes, Document, Parts, chart, line, rule

if TYPE_CHECKING:
    from jinja2 import Template

FOLDER = Path(__file__).parent
FLAGS = (
    options.Flag("documents", Path, "FILE.json", None, "Documents to draw.", is_repeated=True),
    options.Flag("--html", options.output_file, "FILE", ..., "Page to write."),
)


def run(arguments: argparse.Namespace) -> int:
    """Write the page, print what it contains, and return the exit status."""
    documents = [document.read(file) for file in arguments.documents]
    write_page(arguments.html, documents)
    found = [name for name in document.SECTIONS if any(name in one for one in documents)]
    print(f"{arguments.html}: {', '.join(found)}. Open it in any browser.")
    return 0


@cache
def _vega() -> str:
    """Return the JavaScript of the charts, which takes two seconds to make."""
    # Imported here, as jinja2 is, since it comes with an extra.
    import vl_convert

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(FOLDER)
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return made.get_template("page.html")


def write_page(path: Path, documents: Sequence[Document]) -> None:
    """Write a page of documents. Raises OSError if it cannot be written."""
    path.write_text(page(documents), encoding="utf-8", errors="xmlcharrefreplace")


def place(document: Document) -> str:
    """Describe the machine and the model of a document."""
    machine, model = document.get("machine") or {}, document.get("model") or {}
    with_model = f"; model {model['name']}" if model.get("name") else ""
    return f"{machine.get('cpu') or 'an unknown machine'}{with_model}"


def costs(*documents: Document) -> Parts:
    """Yield one plot of cost curves: for each machine and model, the curve with the most widths."""
    known = [one for one in documents if len(one.get("cost_curve") or ()) > 1]
    curves = {place(one): one["cost_curve"] for one in sorted(known, key=lambda one: len(one["cost_curve"]))}
    rows = [
        {"curve": name, "width": point["width"], "ms": 1000 * point["seconds"]}
        | {"cost": point["seconds"] / points[0]["seconds"]}
        for name, points in curves.items()
        for point in points
    ]
    top = max((row["cost"] for row in rows), default=1)
    yield chart(
        "c(w): cost of a forward pass by width",
        "lines",
        rows,
        Axes("width", "cost", "curve"),
        layers=[rule("y", 1), line("width", "width", f"datum.width <= {top}")],
        note="Below the slanted line, a fully accepted draft saves time. At 1, additional width is free.",
    )


SECTIONS: dict[str, Callable[..., Parts]] = {
    "Speedup": sections.speedup, "Parity": sections.parity, "The source of each token": sections.answers,
    "Acceptance": sections.acceptance, "Cost curve": costs, "Settings": sections.sweep,
    "When drafting pays": sections.economics, "Across vocabularies": sections.translation,
    "Servers under load": sections.serve, "Replayed without a model": sections.replay,
}  # fmt: skip
"""By title: what yields the parts of a section."""


def page(documents: Sequence[Document]) -> str:
    """Return a page of documents as HTML."""
    # Numbers that JSON does not have (nan, infinities) become null.
    finite = json.loads(json.dumps(documents), parse_constant=lambda _: None)
    named = {
        f"{(one.get('date') or 'an unknown day')[:10]} on {place(one)}"
        + (f" ({number})" if len(finite) > 1 else ""): [one]
        for number, one in enumerate(finite, 1)
    }
    found = []
    for title, build in SECTIONS.items():
        # All cost curves share one plot; elsewhere, the reader chooses a document.
        given = {", ".join(named): finite} if build is costs else named
        drawn = {origin: [part for part in build(*some) if part] for origin, some in given.items()}
        if variants := [(origin, parts) for origin, parts in drawn.items() if parts]:
            found.append((build.__name__, title, variants))
    style, own = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # A script element ends at the first "</script", also inside a string.
    script = f"{_vega()}\n{own}".replace("</script", "<\\/script")
    shown = {"style": style, "script": script, "hash": _hash, "sections": found, "documents": finite}
    return _template().render(shown)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
