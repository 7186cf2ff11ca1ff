"""Find out how a model writes text within the arguments of its calls: as it is, or with escapes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PROBED = "\n\t\r\"\\/<>&'é"
"""Characters some of which are written otherwise within arguments."""


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """How a model writes text within an argument.

    written: by a character's code, the text written for the character, if that is not the character itself.
    is_ascii: whether JSON escapes are written for all characters that are not ASCII.
    """

    written: dict[int, str] = field(default_factory=dict)
    is_ascii: bool = False

    @property
    def has_escapes(self) -> bool:
        """Whether line breaks are escaped, so that a text of several lines is changed."""
        return ord("\n") in self.written

    def write(self, text: str) -> str:
        """Return a text as the model would write it in an argument."""
        written = text.translate(self.written) if self.written else text
        return "".join(map(_escaped, written)) if self.is_ascii and not written.isascii() else written


AS_IT_IS = ArgumentForm()
AS_JSON = ArgumentForm(
    {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r", ord('"'): '\\"', ord("\\"): "\\\\"}
)
"""As models write JSON: characters that are not ASCII stand for themselves."""


def probe_arguments(render: Callable[[list[dict[str, Any]]], str]) -> ArgumentForm | None:
    """Return the form in which a chat template writes arguments; None if it does not show calls' arguments.

    render: returns the text of rendered messages; it may raise ValueError.
    """
    marks = [f"q{at:02}z" for at in range(len(PROBED) + 1)]
    probe = "".join(map("".join, zip(marks, PROBED, strict=False))) + marks[-1]
    function = {"name": "look", "arguments": {"text": probe}}
    calls = [{"id": "probeid01", "type": "function", "function": function}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": calls}
    ]  # fmt: skip
    rest = render(messages).partition(marks[0])[2]
    written: dict[str, str] = {}
    for character, mark in zip(PROBED, marks[1:], strict=True):
        written[character], found, rest = rest.partition(mark)
        if not found:
            return None
    changed = {ord(one): text for one, text in written.items() if text != one and one.isascii()}
    return ArgumentForm(changed, written["é"].startswith("\\u"))


def _escaped(character: str) -> str:
    if character.isascii():
        return character
    code = character.encode("utf-16-be").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))
