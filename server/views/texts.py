"""Choose which views of a conversation's texts an answer may copy from."""

from collections.abc import Iterator, Sequence
from typing import Any

from engine.text.argument_form import ArgumentForm
from server.views.shapes import read_shapes

MIN_CHARACTERS = 40
"""Shorter texts have no views, nor have those of one line."""

_PATCHES = ("*** Begin Patch", "apply_patch", "unified diff", "```diff")
"""What a conversation says in which patches are asked for."""

Json = dict[str, Any]


def view_texts(messages: Sequence[Json], tools: Sequence[Json], form: ArgumentForm) -> Iterator[str]:
    """Yield the views of a conversation's texts, the newest text first.

    messages, tools: as chat templates expect them. form: of the arguments of the model's calls.
    """
    patches = _find_patches(messages, tools)
    for message in reversed(messages):
        if message["role"] != "system":
            for arguments in reversed([call["function"]["arguments"] for call in message.get("tool_calls", ())]):
                for value in arguments.values() if isinstance(arguments, dict) else ():
                    if isinstance(value, str):
                        yield from _views_of_argument(value, form)
            yield from views_of(message["content"] or "", form if tools else ArgumentForm(), patches)


def views_of(text: str, form: ArgumentForm, patches: bool) -> Iterator[str]:
    """Yield the views of one text of the conversation."""
    if not is_long(text):
        return
    shown = read_shapes(text)
    if form.has_escapes:
        yield form.write(shown.plain)
    if shown.cut:
        yield shown.cut
    if patches:
        yield form.write("".join(f" {line}\n" for line in shown.plain.split("\n")))


def _views_of_argument(text: str, form: ArgumentForm) -> Iterator[str]:
    """Yield the view of what an earlier call had as an argument, which the prompt has as calls have it."""
    if is_long(text):
        shown = read_shapes(text)
        if form.has_escapes:
            yield shown.plain
        elif shown.cut:
            yield shown.cut


def is_long(text: str) -> bool:
    """Return whether a text is worth a view."""
    return len(text) >= MIN_CHARACTERS and "\n" in text


def _find_patches(messages: Sequence[Json], tools: Sequence[Json]) -> bool:
    said = (str(tool) for tool in tools)
    return any(word in text for text in said for word in _PATCHES) or any(
        word in (message["content"] or "") for message in messages for word in _PATCHES
    )
