"""How the model writes text within the arguments of its calls: as it is, or with escapes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PROBED = "\n\t\r\"\\/<>&'é😀"
"""Characters of which the formats of calls write some otherwise."""

_NAMES = [f"q{at:02}z" for at in range(len(PROBED) + 1)]
_PROBE = "".join(name + character for name, character in zip(_NAMES, PROBED, strict=False)) + _NAMES[-1]


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """How text stands in an argument. written: what is written for a character, if not itself.

    is_ascii: whether all characters that are not ASCII are written as JSON's escapes.
    """

    written: dict[int, str] = field(default_factory=dict)
    is_ascii: bool = False

    @property
    def has_escapes(self) -> bool:
        """Whether a text of several lines is written otherwise than it is."""
        return ord("\n") in self.written

    def write(self, text: str) -> str:
        """Return a text as it would stand in an argument."""
        written = text.translate(self.written)
        return "".join(map(_as_ascii, written)) if self.is_ascii and not written.isascii() else written


JSON_FORM = ArgumentForm({ord(one): two for one, two in zip('\n\t\r"\\', ("\\n", "\\t", "\\r", '\\"', "\\\\"), strict=True)})
"""JSON as models write it."""


def probe_arguments(render: Callable[[list[dict[str, Any]]], str]) -> ArgumentForm | None:
    """Return the form in which a chat template writes arguments; None if it does not show them.

    render: returns the text of messages. It may raise anything.
    """
    function = {"name": "look", "arguments": {"text": _PROBE}}
    call = {"id": "probeid01", "type": "function", "function": function}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    rendered = render(messages)
    written: dict[str, str] = {}
    for name, following, character in zip(_NAMES, _NAMES[1:], PROBED, strict=False):
        _, found, rest = rendered.rpartition(name)
        value, ended, _ = rest.partition(following)
        if not found or not ended:
            return None
        written[character] = value
    changed = {ord(one): value for one, value in written.items() if value != one and one.isascii()}
    return ArgumentForm(changed, written["é"].startswith("\\u"))


def _as_ascii(character: str) -> str:
    if character.isascii():
        return character
    code = character.encode("utf-16-be").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))
