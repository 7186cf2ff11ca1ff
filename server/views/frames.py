"""Make the forms that a model's answers fill in: its calls of tools, as its chat template writes them."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from engine.text.argument_form import ArgumentForm

Json = dict[str, Any]
Form = tuple[tuple[str, ...], tuple[int | None, ...]]
"""What is fixed and what is copied, as in Frame, but text."""

_BEFORE = re.compile(r"(?:^|_)(?:old|original|search|find|before)(?:$|_|[A-Z])|^(?:old|original)[A-Z_]")
_AFTER = re.compile(r"(?:^|_)(?:new|updated|replace|replacement|after)(?:$|_|[A-Z])|^(?:new|updated)[A-Z_]")
_BLOCKS = (
    ("<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE"),
    ("------- SEARCH\n", "=======\n", "+++++++ REPLACE"),
)
_MARK = "qv{}z"
_SPOKEN = "qspokenz"


def block_forms(form: ArgumentForm) -> Iterator[Form]:
    """Yield the forms of blocks that search and replace."""
    for fixed in _BLOCKS:
        yield fixed, (None, 0)


def call_form(tool: Json, render: Callable[[list[Json]], str]) -> Form | None:
    """Return the form of a tool's calls; None if they have no text as arguments, or cannot be rendered."""
    function = tool["function"]
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    keys = [key for key, value in properties.items() if isinstance(value, dict) and value.get("type") == "string"]
    needed = [key for key in keys if key in (schema.get("required") or ())] or keys[:1]
    if not needed:
        return None
    marks = [_MARK.format(at) for at in range(len(needed))]
    call = {"id": "probeid01", "type": "function", "function": {"name": function["name"], "arguments": dict(zip(needed, marks))}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _SPOKEN, "tool_calls": [call]}]
    text = render(messages).rpartition(_SPOKEN)[2]
    fixed: list[str] = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            return None
        fixed.append(before)
    return (fixed[0].lstrip(), *fixed[1:], text), tuple(_copied(needed, at) for at in range(len(needed)))


def _copied(keys: Sequence[str], at: int) -> int | None:
    if not _AFTER.search(keys[at]):
        return None
    return next((before for before in range(at) if _BEFORE.search(keys[before])), None)
