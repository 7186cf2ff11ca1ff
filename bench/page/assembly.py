"""Assemble template, style, script and documents into one file."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

MODULES = (
    "dom", "format", "scale", "tooltip", "series", "figure", "table", "dots", "lines", "matrix",
    "documents", "speedup", "acceptance", "costs", "sizes", "sweep", "economics", "translation", "peers",
    "replay", "parity", "answers", "page",
)  # fmt: skip
"""The JavaScript modules, each one after those that it imports."""

_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|function) (\w+))", re.MULTILINE)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write a page that shows all sections of the documents.

    documents: as bench.document.read returns them; if several have the same section, they are shown side by
    side or the reader chooses one. Raises OSError if the file cannot be written, ValueError without
    documents.
    """
    path.write_text(page(documents), encoding="utf-8")


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as HTML. Raises ValueError if there is no document."""
    if not documents:
        raise ValueError("a report needs at least one document")
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    script = _script()
    filled = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "documents": _embedded(documents),
    }
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    # A single pass, so that placeholders inside documents are not filled.
    return _PLACE.sub(lambda place: filled[place[1]], template)


def _script() -> str:
    """Return all modules as one script; each becomes a function that returns its exports."""
    parts = []
    for name in MODULES:
        text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
        exported = ", ".join(_EXPORT.findall(text))
        module = _EXPORT.sub("", _IMPORT.sub("", text))
        parts.append(f"const {{ {exported} }} = (() => {{\n{module}return {{ {exported} }};\n}})();\n")
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _embedded(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return JSON that is safe in a script element: its text cannot end the element or open a comment."""
    text = json.dumps(_finite(list(documents)), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not have (nan, infinities) by None."""
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
