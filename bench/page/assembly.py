"""Template, style, script and documents, put together into one file."""

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
"""The modules of JavaScript, each after those it imports."""

_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|function) (\w+))", re.MULTILINE)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write a page that draws whatever sections the documents have.

    documents: as bench.document.read gives them; those with the same section are shown side by side or by
    choice. Raises OSError if the file cannot be written, and ValueError if there is no document.
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
    # One pass, so that nothing in a document is taken for a place to fill.
    return _PLACE.sub(lambda place: filled[place[1]], template)


def _script() -> str:
    """The modules in one script: each in a function of its own that returns what the module exports."""
    parts = []
    for name in MODULES:
        text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
        exported = ", ".join(_EXPORT.findall(text))
        own = _EXPORT.sub("", _IMPORT.sub("", text))
        parts.append(f"const {{ {exported} }} = (() => {{\n{own}return {{ {exported} }};\n}})();\n")
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _embedded(documents: Sequence[Mapping[str, Any]]) -> str:
    """JSON that can stand in a script element: no text in it can end that element or open a comment."""
    text = json.dumps(_finite(list(documents)), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
