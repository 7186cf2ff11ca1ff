"""Choose which views of a conversation's texts an answer may copy from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reprise.server.views.arguments import AS_IT_IS, ArgumentForm
from reprise.server.views.shapes import Shown

MIN_CHARACTERS = 40
"""Shorter texts have no views, nor have those of one line."""

_PATCH_WORDS = ("*** Begin Patch", "apply_patch", "unified diff", "```diff")
"""Words of a conversation that asks for patches."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The forms in which an answer may quote the files of a text. Each makes one view.

    has_plain: whether to take the whole text, with its files as on disk; else only lines that differ from it.
    arguments: how calls write text in arguments, if that changes it; else None.
    patches: the ways in which answers write a patch's lines, which become SignedLines, not text.
    """

    has_plain: bool = False
    arguments: ArgumentForm | None = None
    patches: tuple[ArgumentForm, ...] = ()

    def write(self, shown: Shown) -> Iterator[str]:
        """Yield a text in each wanted form except patches, always in the same order."""
        yield shown.plain if self.has_plain else shown.cut
        if self.arguments is not None:
            yield self.arguments.write(shown.plain)


def spoken_patches(
    messages: Sequence[Json], tools: Sequence[Json], arguments: ArgumentForm
) -> tuple[ArgumentForm, ...]:
    """Return the ways in which answers may write a patch's lines: in arguments of calls, in text, or both.

    Empty if neither tools nor messages speak of patches. messages, tools: as chat templates expect them.
    arguments: how calls write text in arguments.
    """
    forms: list[ArgumentForm] = []
    if any(map(speaks_of_patches, map(str, tools))):
        forms.append(arguments)
    if any(speaks_of_patches(message["content"] or "") for message in messages if message["role"] != "tool"):
        forms += [form for form in (AS_IT_IS,) if form not in forms]
    return tuple(forms)


def texts_of(
    messages: Sequence[Json], arguments: ArgumentForm, patches: tuple[ArgumentForm, ...]
) -> Iterator[tuple[str, Wanted]]:
    """Yield the texts that an answer may copy, the newest first, each with the forms wanted of it.

    messages: as chat templates expect them. arguments: how calls write text in arguments.
    patches: see spoken_patches().
    """
    escapes = arguments if arguments.has_escapes else None
    shown = Wanted(arguments=escapes, patches=patches)
    # What was written in a call stands in the prompt as it would in the next call.
    called = Wanted(has_plain=escapes is not None)
    for message in reversed(messages):
        for call in reversed(message.get("tool_calls", ())):
            given = call["function"]["arguments"]
            values = given.values() if isinstance(given, dict) else ()
            yield from ((text, called) for text in values if isinstance(text, str) and _is_long(text))
        text = message["content"] or ""
        if message["role"] != "system" and _is_long(text):
            yield text, shown


def speaks_of_patches(text: str) -> bool:
    """Return whether a text has one of the words by which patches are asked for."""
    return any(word in text for word in _PATCH_WORDS)


def _is_long(text: str) -> bool:
    return len(text) >= MIN_CHARACTERS and "\n" in text
