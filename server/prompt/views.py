"""Make views of conversations for drafters: texts that an answer may copy, in the answer's form.

drafters/README.md explains views. They are encoded in slices of work, and cached for the next turn.
"""

import contextlib
import hashlib
import json
import re
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.request import Frame, SignedLines, View
from reprise.server.prompt.encoder import to_harmony_messages

if TYPE_CHECKING:
    from reprise.engine.engine import Engine
    from reprise.engine.generating.generating_engine import GeneratingEngine

Json = dict[str, Any]
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """How a model writes text within an argument.

    written: character code -> the text written for it, if that is not the character itself.
    is_ascii: whether non-ASCII characters become JSON escapes.
    """

    written: dict[int, str] = field(default_factory=dict)
    is_ascii: bool = False

    @property
    def has_escapes(self) -> bool:
        """Whether line breaks are escaped, which changes a text of several lines."""
        return ord("\n") in self.written

    def write(self, text: str) -> str:
        """Return a text as the model would write it in an argument."""
        written = text.translate(self.written) if self.written else text
        return _NOT_ASCII.sub(lambda some: json.dumps(some[0])[1:-1], written) if self.is_ascii else written


AS_IT_IS = ArgumentForm()
AS_JSON = ArgumentForm({ord(one): json.dumps(one)[1:-1] for one in '\n\t\r"\\'})
"""As models write JSON: characters that are not ASCII stand for themselves."""
PROBED = "\n\t\r\"\\/<>&'é"
"""Characters some of which are written otherwise within arguments."""


def probe_arguments(render: Callable[[list[Json]], str]) -> ArgumentForm | None:
    """Return how a chat template writes arguments; None if it does not show them.

    render: returns the text of rendered messages; it may raise ValueError.
    """
    marks = [f"q{at:02}z" for at in range(len(PROBED) + 1)]
    probe = "".join(map("".join, zip(marks, PROBED, strict=False))) + marks[-1]
    rest = render(_with_call("", {"name": "look", "arguments": {"text": probe}})).partition(marks[0])[2]
    written: dict[str, str] = {}
    for character, mark in zip(PROBED, marks[1:], strict=True):
        written[character], found, rest = rest.partition(mark)
        if not found:
            return None
    changed = {ord(one): text for one, text in written.items() if text != one and one.isascii()}
    return ArgumentForm(changed, written["é"].startswith("\\u"))


def _with_call(said: str, function: Json) -> list[Json]:
    calls = [{"id": "probeid01", "type": "function", "function": function}]
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": said, "tool_calls": calls}]


Form = tuple[tuple[str, ...], tuple[int | None, ...]]
"""Frame.fixed as text, and Frame.copied."""
BLOCKS: tuple[Form, ...] = (
    (("<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE"), (None, 0)),
    (("------- SEARCH\n", "=======\n", "+++++++ REPLACE"), (None, 0)),
)
"""The blocks in which agents without a tool for it change files: the second text is like the first."""
PATCH = ("*** Begin Patch\n*** Update File: ", "@@\n", "*** End Patch")
PATCHES: tuple[Form, ...] = ((PATCH, (None, None)), (("--- a/", "+++ b/", "@@ -"), (None, 0)))
"""A patch of a file, around its path and its hunks; and a diff, around its paths, which are alike."""
HARMONY_REASONING: Form = (
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>"),
    (None,),
)
"""The markers around gpt-oss's reasoning."""
_BEFORE = re.compile(r"(?:^|_)(?:old|original|search|find|before)(?:$|_|[A-Z])")
_AFTER = re.compile(r"(?:^|_)(?:new|updated|replace|replacement|after)(?:$|_|[A-Z])")
"""Names of arguments, the second of which is often like the first: old_string and new_string, oldText ..."""
_SPOKEN = "qspokenz"


def call_forms(tool: Json, write: Callable[[Json], Iterable[str]], arguments: ArgumentForm) -> Iterator[Form]:
    """Yield the forms of a tool's calls, with slots for the required text arguments.

    A tool without such arguments has no forms. If its only one is a patch, the slots are the patch's path and
    hunks.
    write: returns a model's possible texts for a call; may raise ValueError.
    """
    function = tool["function"]
    names = _text_arguments(function["parameters"])
    if not names:
        return
    words = (PATCH[0].splitlines()[0], "apply_patch")
    is_patch = len(names) == 1 and any(word in str(tool) for word in words)
    marks = [f"q{at:03}z" for at in range(len(names) + is_patch)]
    values = [f"{PATCH[0]}{marks[0]}\n{PATCH[1]}{marks[1]}\n{PATCH[2]}"] if is_patch else marks
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
            yield (*fixed, rest), tuple(_like(names, at) for at in range(len(names)))


def rendered_call(call: Json, render: Callable[[list[Json]], str]) -> str:
    """Return a call as a chat template writes it. render: returns the text of rendered messages."""
    return render(_with_call(_SPOKEN, call)).rpartition(_SPOKEN)[2].lstrip()


def _harmony_calls(call: Json) -> Iterator[str]:
    """Yield a call as gpt-oss writes it, unlike its template: its JSON with spaces, and without.

    The channel before the call also ends the reasoning; see HARMONY_REASONING.
    """
    head = f"commentary to=functions.{call['name']} <|constrain|>json<|message|>"
    for separators in ((", ", ": "), (",", ":")):
        yield f"{head}{json.dumps(call['arguments'], ensure_ascii=False, separators=separators)}<|call|>"


def _text_arguments(schema: Json) -> list[str]:
    """Return the names of the required text arguments."""
    properties, required = schema.get("properties"), schema.get("required") or ()
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
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.){80,}"')
"""A long string of JSON, as in the result of a tool that answers with JSON."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A text with quoted files restored as on disk. plain: the whole text. cut: only the changed lines."""

    plain: str
    cut: str


def read_shapes(text: str) -> Shown:
    """Find the files that a text quotes, and restore them as on disk."""
    plain: list[str] = []
    cut: list[str] = []
    lines, at = text.split("\n"), 0
    while at < len(lines):
        for read in (_read_diff, _read_found, _read_numbered):
            num_lines, found = read(lines, at)
            if num_lines:
                break
        cut += found
        plain += found if num_lines else [lines[at]]
        at += num_lines or 1
    for quoted in _QUOTED.findall(text) if "\\n" in text else ():
        with contextlib.suppress(ValueError):
            if "\n" in (inner := str(from_json(quoted))):
                found = read_shapes(inner).plain.split("\n")
                plain += found
                cut += found
    return Shown("\n".join(plain), "".join(f"{line}\n" for line in cut))


def _read_diff(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return the number of lines from start that form a diff's hunk, and the file's new lines."""
    if not lines[start].startswith("@@"):
        return 0, []
    found: list[str] = []
    at = start + 1
    while at < len(lines) and lines[at][:1] in " +-\\" and lines[at][:4] not in ("--- ", "+++ "):
        if lines[at][:1] in " +":
            found.append(lines[at][1:])
        at += 1
    return at - start, found


def _read_found(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return the number of lines from start that are one file's search results, and the file's lines."""
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
    """Return the number of numbered lines from start, and the file's lines."""
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
    if first not in "→\t":
        # Files are indented by even numbers of spaces, so an odd one has the gap behind the mark in it.
        depths = [len(line) - len(line.lstrip(" ")) for line in found if line.strip()]
        if min(depths, default=0) % 2:
            found = [line[1:] for line in found]
    return len(found), found


MIN_CHARACTERS = 40
"""Shorter texts have no views, nor have those of one line."""
_PATCH_WORDS = ("*** Begin Patch", "apply_patch", "unified diff", "```diff")
"""Words of a conversation that asks for patches."""


def _spoken_patches(
    messages: Sequence[Json], tools: Sequence[Json], arguments: ArgumentForm
) -> tuple[ArgumentForm, ...]:
    """Return how answers may write a patch's lines: in call arguments, in text, or both.

    Empty if neither tools nor messages mention patches.
    """
    said = [message["content"] or "" for message in messages if message["role"] != "tool"]
    forms = [arguments] if any(map(_speaks_of_patches, map(str, tools))) else []
    if AS_IT_IS not in forms and any(map(_speaks_of_patches, said)):
        forms.append(AS_IT_IS)
    return tuple(forms)


def _speaks_of_patches(text: str) -> bool:
    return any(word in text for word in _PATCH_WORDS)


def _is_long(text: Any) -> bool:
    return isinstance(text, str) and len(text) >= MIN_CHARACTERS and "\n" in text


MAX_TOKENS = 1 << 17
"""Maximum tokens of the views of one request. Those of the newest texts come first."""
SLICE_CHARACTERS, SLICE_LINES, SLICE_ENDS = 4096, 96, 16
"""What one slice reads or encodes: characters (about 1,000 tokens) up to the end of a line or word; lines, as
short ones take time by their number; ends of values, which are tried."""
LINE_CHARACTERS = 100
"""Characters that take as long as to begin with another line."""
MAX_SLICE_CHARACTERS = 4 * SLICE_CHARACTERS
"""A longer line or word is cut: other threads wait for a slice, and there only some drafts are lost."""
SIGNS = " -+"
"""The signs of lines in patches: kept, removed and added."""
_TIGHT = r'''
    \" \", \") )) )] }) ): ), ); ], }, }; () [] {} """ ()) ()] (): (), (); )); )), ]) }), }); ")
    ') "), '), "); "] '] "], ', ", "; '; (" "> /> */ => ({ ([ ." ').
    '''
_SPACED = r'''} { }; }, ) ), ); ] ], }); """ */ = ( [ + \ // '''
VALUE_ENDS = (*")]}>:;,.!?'+-*/=_|&%#@$^~`", *_TIGHT.split(), *(f" {end}" for end in _SPACED.split()))
LINE_ENDS = ("\n", *(f"{end}\n" for end in VALUE_ENDS))
"""Ends of values that tokenizers may join to the text behind them, and the same of those that end with
a line."""
_BEFORE_WORD = re.compile(r"(?<=[a-zA-Z]) (?=[a-zA-Z])")

Views = list[View]
Make = Callable[[Views], Iterator[None]]
"""Adds views to a list, in slices."""


class ViewMaker:
    """Makes the views of conversations, a slice of work at a time.

    max_kept_bytes: limit of the cached views, evicted by last use; a token takes four bytes.
    """

    def __init__(self, engine: "Engine | GeneratingEngine", max_kept_bytes: int) -> None:
        self._engine = engine
        self._kept = BoundedCache[Views](lambda views: 4 * _count(views), max_kept_bytes)

    @property
    def kept_bytes(self) -> int:
        """The bytes of all cached views."""
        return self._kept.num_bytes

    @cached_property
    def _arguments(self) -> ArgumentForm:
        """How the model writes text in call arguments."""
        if not self._engine.tokenizer.markers.can_call:
            return AS_IT_IS
        try:
            return probe_arguments(self._render) or AS_JSON
        # Not every template shows calls.
        except ValueError:
            return AS_JSON

    def _render(self, messages: Sequence[Json]) -> str:
        tokenizer = self._engine.tokenizer
        given = to_harmony_messages(messages) if tokenizer.markers.is_harmony else list(messages)
        return tokenizer.decode(tokenizer.render_chat(given, end="messages"))

    def _write_call(self, call: Json) -> Iterable[str]:
        is_harmony = self._engine.tokenizer.markers.is_harmony
        return _harmony_calls(call) if is_harmony else [rendered_call(call, self._render)]

    def make(
        self, messages: Sequence[Json], tools: Sequence[Json], owner: str, views: Views
    ) -> Iterator[None]:
        """Add views to the list: cached ones at once, then new ones in slices, newest texts first.

        messages, tools: as chat templates expect them. owner: only views made for the same owner are reused.
        """
        missing: list[tuple[bytes, Make]] = []
        room_tokens = MAX_TOKENS
        for seed, make in self._groups(messages, tools):
            key = hashlib.blake2b(f"{owner}\0{seed}".encode(errors="surrogatepass"), digest_size=16).digest()
            if (kept := self._kept.get(key)) is None:
                missing.append((key, make))
                # Room for new views, before cached ones of older texts: about a token for each character.
                room_tokens -= len(seed)
            elif room_tokens >= (num_tokens := _count(kept)):
                views += kept
                room_tokens -= num_tokens
        room_tokens = MAX_TOKENS - _count(views)
        for key, make in missing:
            yield
            made: Views = []
            yield from make(made)
            self._kept.put(key, made)
            if (room_tokens := room_tokens - _count(made)) < 0:
                return
            views += made

    def _groups(self, messages: Sequence[Json], tools: Sequence[Json]) -> Iterator[tuple[str, Make]]:
        """Yield the key of each group of views, and the function that makes the group."""
        arguments = self._arguments if tools else AS_IT_IS
        escapes = arguments if arguments.has_escapes else None
        patches = _spoken_patches(messages, tools, arguments)

        def group(text: str, *forms: Any) -> tuple[str, Make]:
            return f"{forms}\0{text}", partial(self._make_texts, text, *forms)

        yield to_json(tools).decode(), partial(self._make_tool_frames, tools, arguments)
        yield f"{patches}", partial(self._make_frames, [*_written(PATCHES, patches)])
        for message in reversed(messages):
            for call in reversed(message.get("tool_calls", ())):
                given = call["function"]["arguments"]
                values = given.values() if isinstance(given, dict) else ()
                # The prompt already has a call's text as the next call would write it.
                yield from (group(text, escapes is not None, None, ()) for text in values if _is_long(text))
            text = message["content"]
            if message["role"] != "system" and _is_long(text):
                yield group(text, False, escapes, patches)

    def _make_texts(
        self,
        text: str,
        has_plain: bool,
        escapes: ArgumentForm | None,
        patches: Sequence[ArgumentForm],
        made: Views,
    ) -> Iterator[None]:
        """Add a text in each form in which an answer may quote the files in it.

        has_plain: whether to add the whole restored text; else only the changed lines.
        escapes: how call arguments escape text, if they do. patches: how answers write a patch's lines, which
            become SignedLines.
        """
        parts: list[list[str]] = []
        plain: list[str] = []
        for lines in _cut_lines(text):
            read = read_shapes(lines)
            plain.append(read.plain)
            parts.append([read.plain if has_plain else read.cut])
            if escapes is not None:
                parts[-1].append(escapes.write(read.plain))
            yield
        for written in map("".join, zip(*parts, strict=True)):
            view = array("I")
            for chunk in _cut_words(written):
                view.extend(self._engine.tokenizer.encode_answer(chunk))
                yield
            if view:
                made.append(view)
        for form in patches:
            yield from self._make_lines("".join(plain), form, made)

    def _make_lines(self, text: str, form: ArgumentForm, made: Views) -> Iterator[None]:
        """Add a text's lines as in patches, except those that are longer than a slice."""
        encode = self._engine.tokenizer.encode_answer
        texts, ends = (array("I"), array("I"), array("I")), (array("I"), array("I"), array("I"))
        num_characters = 0
        for line in text.removesuffix("\n").split("\n"):
            if len(line) > SLICE_CHARACTERS:
                continue
            for sign, ids, stops in zip(SIGNS, texts, ends, strict=True):
                ids.extend(encode(form.write(f"{sign}{line}\n")))
                stops.append(len(ids))
            num_characters += LINE_CHARACTERS + len(line)
            if num_characters > SLICE_CHARACTERS:
                num_characters = 0
                yield
        made.append(SignedLines(*texts, ends))

    def _make_tool_frames(
        self, tools: Sequence[Json], arguments: ArgumentForm, made: Views
    ) -> Iterator[None]:
        forms = [*_written(BLOCKS, [AS_IT_IS, *([arguments] if arguments.has_escapes else [])])]
        if self._engine.tokenizer.markers.is_harmony:
            forms.append(HARMONY_REASONING)
        for tool in tools:
            # Not every template shows calls.
            with contextlib.suppress(ValueError):
                forms += call_forms(tool, self._write_call, arguments)
            yield
        yield from self._make_frames(forms, made)

    def _make_frames(self, forms: Sequence[Form], made: Views) -> Iterator[None]:
        encode = self._engine.tokenizer.encode_answer
        known: dict[str, dict[int, tuple[int, ...]]] = {}
        for fixed, copied in forms:
            for text in fixed[1:]:
                if text not in known:
                    known[text] = yield from self._find_joints(text)
            # A space before a value is one with its first word.
            ids = tuple(self._until_end(encode(text.rstrip(" "))) for text in fixed)
            made.append(Frame(ids, copied, tuple(known[text] for text in fixed[1:])))
        yield

    def _find_joints(self, fixed: str) -> Generator[None, None, dict[int, tuple[int, ...]]]:
        """Return the joints of a fixed part after a value, found in slices; see Frame.joints."""
        tokenizer = self._engine.tokenizer
        joints: dict[int, tuple[int, ...]] = {}
        for number, end in enumerate((*VALUE_ENDS, *LINE_ENDS) if fixed.startswith("\n") else VALUE_ENDS):
            joined = tokenizer.encode_answer(end + fixed)
            if len(tokenizer.decode(joined[:1])) > len(end):
                last, *more = tokenizer.encode_answer(end)
                if not more:
                    joints[last] = self._until_end(joined)
            if number % SLICE_ENDS == 0:
                yield
        return joints

    def _until_end(self, ids: Sequence[int]) -> tuple[int, ...]:
        ends = self._engine.tokenizer.eos_ids
        return tuple(takewhile(lambda token: token not in ends, ids))


def _written(forms: Sequence[Form], ways: Iterable[ArgumentForm]) -> Iterator[Form]:
    """Yield every form in every way that an answer may write it."""
    for way in ways:
        for fixed, copied in forms:
            yield tuple(map(way.write, fixed)), copied


def _count(views: Sequence[View]) -> int:
    """Count the tokens of views, plus an allowance for their containers."""
    count = 0
    for view in views:
        parts: Iterable[Any] = (view,)
        if isinstance(view, SignedLines):
            parts = (view.kept, view.removed, view.added, *view.ends)
        elif isinstance(view, Frame):
            parts = (*view.fixed, *(tokens for joints in view.joints for tokens in joints.values()))
        count += 16 + sum(map(len, parts))
    return count


def _cut_lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        most = start + MAX_SLICE_CHARACTERS
        end = text.find("\n", start + SLICE_CHARACTERS, most) + 1 or min(most, len(text))
        line_end = start
        for _ in range(SLICE_LINES):
            if not (line_end := text.find("\n", line_end, end) + 1):
                break
        end = line_end or end
        yield text[start:end]
        start = end


def _cut_words(text: str) -> Iterator[str]:
    """Split a text before words within lines, where tokenizers split it too."""
    start = 0
    while start < len(text):
        most = start + MAX_SLICE_CHARACTERS
        match = _BEFORE_WORD.search(text, start + SLICE_CHARACTERS, most)
        end = match.start() if match else min(most, len(text))
        yield text[start:end]
        start = end
