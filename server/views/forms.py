"""Make the forms that a model's answers fill in, such as tool calls as its chat template writes them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from reprise.server.views.arguments import ArgumentForm

Json = dict[str, Any]
Form = tuple[tuple[str, ...], tuple[int | None, ...]]
"""Frame.fixed as text, and Frame.copied."""

BLOCKS = (
    ("<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE"),
    ("------- SEARCH\n", "=======\n", "+++++++ REPLACE"),
)
"""The blocks in which agents without a tool for it change files: the second text is like the first."""

PATCH = ("*** Begin Patch\n*** Update File: ", "@@\n", "*** End Patch")
DIFF = ("--- a/", "+++ b/", "@@ -")
"""A patch of a file, around its path and its hunks; and a diff, around its paths, which are alike."""

HARMONY_REASONING: Form = (
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>"),
    (None,),
)
"""The markers around gpt-oss's reasoning."""

_BEFORE = re.compile(r"(?:^|_)(?:old|original|search|find|before)(?:$|_|[A-Z])")
_AFTER = re.compile(r"(?:^|_)(?:new|updated|replace|replacement|after)(?:$|_|[A-Z])")
"""Names of arguments, the second of which is often like the first: old_string and new_string, oldText ..."""

_SPOKEN, _MARK = "qspokenz", "q{:03}z"


def block_forms(arguments: ArgumentForm) -> Iterator[Form]:
    """Yield the forms of search-and-replace blocks, as written in an answer's text and in arguments."""
    for write in (str, arguments.write) if arguments.has_escapes else (str,):
        for block in BLOCKS:
            yield tuple(map(write, block)), (None, 0)


def patch_forms(patches: Iterable[ArgumentForm]) -> Iterator[Form]:
    """Yield the forms of patches. patches: the ways in which answers write a patch's lines."""
    for form in patches:
        yield tuple(map(form.write, PATCH)), (None, None)
        yield tuple(map(form.write, DIFF)), (None, 0)


def call_forms(tool: Json, write: Callable[[Json], Iterable[str]], arguments: ArgumentForm) -> Iterator[Form]:
    """Yield the forms of a tool's calls, with places for the required arguments that are text.

    A tool without such arguments has no forms. If its only one is a patch, the patch's path and hunks are the
    places instead.
    write: returns the texts that a model may write for a call; may raise ValueError.
    """
    function = tool["function"]
    names = _text_arguments(function["parameters"])
    if not names:
        return
    is_patch = len(names) == 1 and _is_patch(str(tool))
    marks = [_MARK.format(at) for at in range(len(names) + is_patch)]
    values = [f"{PATCH[0]}{marks[0]}\n{PATCH[1]}{marks[1]}\n{PATCH[2]}"] if is_patch else marks
    likes = [None if is_patch else _like(names, at) for at in range(len(names))]
    for rest in write({"name": function["name"], "arguments": dict(zip(names, values, strict=True))}):
        fixed: list[str] = []
        for mark in marks:
            before, _, rest = rest.partition(mark)
            fixed.append(before)
        if not rest:
            continue
        if is_patch:
            # Line ends do not say that a value ends here, so they are the values'.
            line_end = arguments.write("\n")
            yield (fixed[0], fixed[1].removeprefix(line_end), rest.removeprefix(line_end)), (None, None)
        else:
            yield (*fixed, rest), tuple(likes)


def rendered_call(call: Json, render: Callable[[list[Json]], str]) -> str:
    """Return a call as a chat template writes it. render: returns the text of rendered messages."""
    calls = [{"id": "probeid01", "type": "function", "function": call}]
    return render([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": _SPOKEN, "tool_calls": calls}
    ]).rpartition(_SPOKEN)[2].lstrip()  # fmt: skip


def harmony_calls(call: Json) -> Iterator[str]:
    """Yield a call as gpt-oss writes it, unlike its template: its JSON with spaces, and without.

    The channel that stands before the call also ends the reasoning; see HARMONY_REASONING.
    """
    head = f"commentary to=functions.{call['name']} <|constrain|>json<|message|>"
    for separators in ((", ", ": "), (",", ":")):
        yield f"{head}{json.dumps(call['arguments'], ensure_ascii=False, separators=separators)}<|call|>"


def _is_patch(tool: str) -> bool:
    return any(word in tool for word in (PATCH[0].partition("\n")[0], "apply_patch"))


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
