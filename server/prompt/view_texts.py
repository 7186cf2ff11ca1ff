"""Cut the texts that a conversation shows into the forms that an answer may repeat."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

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
    rest = render(_messages("", function)).partition(marks[0])[2]
    written: dict[str, str] = {}
    for character, mark in zip(PROBED, marks[1:], strict=True):
        written[character], found, rest = rest.partition(mark)
        if not found:
            return None
    changed = {ord(one): text for one, text in written.items() if text != one and one.isascii()}
    return ArgumentForm(changed, written["é"].startswith("\\u"))


def _messages(said: str, function: dict[str, Any]) -> list[dict[str, Any]]:
    calls = [{"id": "probeid01", "type": "function", "function": function}]
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": said, "tool_calls": calls}]


def _escaped(character: str) -> str:
    if character.isascii():
        return character
    code = character.encode("utf-16-be").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))


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
    is_patch = len(names) == 1 and any(
        word in str(tool) for word in (PATCH[0].splitlines()[0], "apply_patch")
    )
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
    return render(_messages(_SPOKEN, call)).rpartition(_SPOKEN)[2].lstrip()


def harmony_calls(call: Json) -> Iterator[str]:
    """Yield a call as gpt-oss writes it, unlike its template: its JSON with spaces, and without.

    The channel that stands before the call also ends the reasoning; see HARMONY_REASONING.
    """
    head = f"commentary to=functions.{call['name']} <|constrain|>json<|message|>"
    for separators in ((", ", ": "), (",", ":")):
        yield f"{head}{json.dumps(call['arguments'], ensure_ascii=False, separators=separators)}<|call|>"


def _text_arguments(schema: Json) -> list[str]:
    """Return the names of the texts among the arguments that must be there."""
    properties = schema.get("properties")
    required = schema.get("required") or ()
    if not isinstance(properties, dict):
        return []
    found = {name: one for name, one in properties.items() if name in required and isinstance(one, dict)}
    return [name for name, one in found.items() if one.get("type") == "string"]


def _like(names: Sequence[str], at: int) -> int | None:
    if not _AFTER.search(names[at]):
        return None
    return next((before for before in range(at) if _BEFORE.search(names[before])), None)


MIN_NUMBERED = 3
"""Lines in a row that must be numbered to be taken for a file's, unless an arrow or a path stands there."""

_NUMBERED = re.compile(r"(?:<\w+>)?[ ]*L?(?P<number>\d{1,7})(?P<mark>→|\t| ?\||[:-])(?P<line>.*)")
"""A line with its number. A tag may be glued to the first line of a file."""

_FOUND = re.compile(r"(?P<path>[\w./~][^\s:]*?)(?P<mark>[:-])(?P<number>\d{1,7})(?P=mark)(?P<line>.*)")
"""A line that was found, or stands beside one, as grep prints it."""

_HUNK = re.compile(r"@@ .*@@.*|@@.*")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.){80,}"')
"""A long string of JSON, as in the result of a tool that answers with JSON."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A text in which shown files are as on disk. plain: the whole text. cut: only the lines that differ."""

    plain: str
    cut: str


def read_shapes(text: str) -> Shown:
    """Find the files that a text shows, and return the text with the files as on disk."""
    plain: list[str] = []
    cut: list[str] = []
    for lines, is_cut in _parts(text.split("\n")):
        plain += lines
        cut += lines if is_cut else ()
    for quoted in _QUOTED.findall(text) if "\\n" in text else ():
        if "\n" in (inner := _unquoted(quoted)):
            lines = read_shapes(inner).plain.split("\n")
            plain += lines
            cut += lines
    return Shown("\n".join(plain), "".join(f"{line}\n" for line in cut))


def _unquoted(quoted: str) -> str:
    try:
        return str(from_json(quoted))
    except ValueError:
        return ""


def _parts(lines: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines in parts, those of files without what stands before them, and whether it was cut."""
    at = 0
    while at < len(lines):
        for read in (_read_diff, _read_found, _read_numbered):
            num_lines, found = read(lines, at)
            if num_lines:
                yield found, True
                break
        else:
            num_lines = 1
            yield [lines[at]], False
        at += num_lines


def _read_diff(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return how many lines from start on are a hunk of a diff, and the new lines of the file."""
    if not _HUNK.fullmatch(lines[start]):
        return 0, []
    found: list[str] = []
    at = start + 1
    while at < len(lines) and (not lines[at] or lines[at][0] in " +-\\"):
        if lines[at][:4] in ("--- ", "+++ "):
            break
        if lines[at][:1] in (" ", "+", ""):
            found.append(lines[at][1:])
        at += 1
    return at - start, found


def _read_found(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return how many lines from start on were found in one file, and the lines of the file."""
    found: list[str] = []
    path = ""
    for line in lines[start:]:
        match = _FOUND.fullmatch(line)
        if match is None or path not in ("", match["path"]):
            break
        path = match["path"]
        found.append(match["line"])
    return len(found), found


def _read_numbered(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return how many lines from start on are numbered, and the lines of the file."""
    found: list[str] = []
    first, last = "", 0
    for line in lines[start:]:
        match = _NUMBERED.fullmatch(line)
        if match is None:
            break
        number, mark = int(match["number"]), match["mark"]
        # A search finds some lines, and marks those beside them otherwise.
        is_found = mark in ":-" and first in ":-"
        if found and not (number > last if is_found else mark == first and number == last + 1):
            break
        first, last = first or mark, number
        found.append(match["line"])
    if len(found) < MIN_NUMBERED and first != "→":
        return 0, []
    return len(found), found if first in "→\t" else _without_gap(found)


def _without_gap(lines: list[str]) -> list[str]:
    """Return lines without the space between the mark and each of them, if there is one."""
    depths = [len(line) - len(line.lstrip(" ")) for line in lines if line.strip()]
    least = min(depths, default=0)
    # Files are indented by even numbers of spaces, so an odd one has the gap in it.
    return [line[1:] for line in lines] if least % 2 else lines


MIN_CHARACTERS = 40
"""Shorter texts have no views, nor have those of one line."""

_PATCH_WORDS = ("*** Begin Patch", "apply_patch", "unified diff", "```diff")
"""Words of a conversation that asks for patches."""


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
