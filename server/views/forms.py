"""Make the forms that a model's answers fill in: its calls of tools, as its chat template writes them."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from server.views.arguments import ArgumentForm

Json = dict[str, Any]
Form = tuple[tuple[str, ...], tuple[int | None, ...]]
"""Frame.fixed as text, and Frame.copied."""

BLOCKS = (
    ("<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE"),
    ("------- SEARCH\n", "=======\n", "+++++++ REPLACE"),
)
"""The blocks in which agents without a tool for it change files: the second text is like the first."""

_BEFORE = re.compile(r"(?:^|_)(?:old|original|search|find|before)(?:$|_|[A-Z])")
_AFTER = re.compile(r"(?:^|_)(?:new|updated|replace|replacement|after)(?:$|_|[A-Z])")
"""Names of arguments, the second of which is often like the first: old_string and new_string, oldText ..."""

_SPOKEN, _MARK = "qspokenz", "q{:03}z"


def block_forms(arguments: ArgumentForm) -> Iterator[Form]:
    """Yield the forms of blocks that search and replace, in the text of an answer and in arguments."""
    for write in (str, arguments.write) if arguments.has_escapes else (str,):
        for block in BLOCKS:
            yield tuple(map(write, block)), (None, 0)


def call_form(tool: Json, render: Callable[[list[Json]], str]) -> Form | None:
    """Return the form of a tool's calls; None if none of its arguments is a text that must be there.

    Other arguments have no place in it.
    render: returns the text of messages; may raise ValueError.
    """
    function = tool["function"]
    names = _text_arguments(function["parameters"])
    if not names:
        return None
    marks = [_MARK.format(at) for at in range(len(names))]
    call = {"name": function["name"], "arguments": dict(zip(names, marks, strict=True))}
    calls = [{"id": "probeid01", "type": "function", "function": call}]
    rest = render([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": _SPOKEN, "tool_calls": calls}
    ]).rpartition(_SPOKEN)[2].lstrip()  # fmt: skip
    fixed: list[str] = []
    for mark in marks:
        before, found, rest = rest.partition(mark)
        if not found:
            return None
        fixed.append(before)
    return (*fixed, rest), tuple(_like(names, at) for at in range(len(names)))


def _text_arguments(schema: Json) -> list[str]:
    """Return the names of the texts among the arguments that must be there."""
    properties = schema.get("properties")
    required = schema.get("required") or ()
    if not isinstance(properties, dict):
        return []
    found = {name: one for name, one in properties.items() if name in required and isinstance(one, dict)}
    return [name for name, one in found.items() if one.get("type") == "string"]


def _like(names: Sequence[str], at: int) -> int | None:
    """Return the number of the argument that this one is often like."""
    if not _AFTER.search(names[at]):
        return None
    return next((before for before in range(at) if _BEFORE.search(names[before])), None)
