"""Messages, calls and tools in the normal form, whichever API they came through."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from reprise.server.errors import BadRequestError, bad_field
from reprise.server.validation.fields import Notes

Json = dict[str, Any]
Detail = Literal["low", "high", "auto"]
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Media:
    """A part of a message that is not text, so that a model which only reads text is not shown it.

    kind: image, audio, video or document. name: the part's title, or "". at: the part's path in the request.
    Only images have data (base64), or the fault because of which they have none, and a detail.
    """

    kind: str
    name: str = ""
    at: str = field(default="", compare=False)
    data: str = field(default="", repr=False)
    fault: str = ""
    detail: Detail = "auto"

    def __str__(self) -> str:
        """Return the text that stands in for the part, the same in every turn: no sizes, no dates."""
        return f"[{self.kind}{self.name and ' ' + self.name}: this model reads text]"


Part = str | Media


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call by the assistant. id: may be "" until settle() gives the call one."""

    id: str
    name: str
    arguments: Json

    def for_template(self) -> Json:
        """Return the call as chat templates expect it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, in the normal form.

    call_id: in a tool's message, the id of the call that it answers. joint: the text between two parts.
    at: the message's path in the request, for notes and errors.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""
    joint: str = ""
    at: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The text that the model is shown."""
        return self.joint.join(map(str, self.parts))

    @property
    def can_continue(self) -> bool:
        """Whether an answer may continue the message: the assistant's own text, and not a placeholder."""
        ends_with_text = bool(self.parts) and isinstance(self.parts[-1], str)
        return self.role == "assistant" and not self.calls and ends_with_text and bool(self.text.strip())

    def for_template(self) -> Json:
        """Return the message as chat templates expect it."""
        shown: Json = {"role": self.role, "content": self.text}
        named = {"name": self.name, "reasoning_content": self.reasoning}
        shown |= {name: value for name, value in named.items() if value}
        if self.role == "tool":
            shown["tool_call_id"] = self.call_id
        if self.calls:
            shown["tool_calls"] = [call.for_template() for call in self.calls]
        return shown


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may ask the client to call. The model is shown every tool as a function.

    strict: whether its schema must be enforced. lark: the grammar of a free-form tool's input, if it has one.
    at: path of the schema or grammar in the request. is_custom: whether the client's tool is free-form.
    own_name, namespace: the client's name for the tool, and the namespace that the tool is in, if any.
    """

    name: str
    description: str | None
    parameters: Json
    strict: bool = False
    lark: str | None = None
    at: str = ""
    is_custom: bool = False
    own_name: str = ""
    namespace: str | None = None

    def for_template(self) -> Json:
        """Return the tool as chat templates expect it."""
        function: Json = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": self.parameters}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call.

    names: the tools that the model may call; None for all. is_named: it must call the one in names.
    is_parallel: whether an answer may have several calls; None if the choice does not say.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
    is_named: bool = False
    is_parallel: bool | None = None


def joined(group: Sequence[Message]) -> Message:
    """Return one message with the parts, the reasoning and the calls of several messages of the same role."""
    if len(group) == 1:
        return group[0]
    return replace(
        group[0],
        parts=tuple(part for one in group for part in one.parts),
        reasoning="".join(one.reasoning for one in group),
        calls=tuple(call for one in group for call in one.calls),
    )


MAX_MESSAGES = 4096
MAX_PARTS = 8192
"""Maximum parts of a whole conversation, those of results included: translating each takes time."""
SEEING = (
    ", or serve a model that sees, such as mlx-community/Qwen3-VL-4B-Instruct-4bit (docs/images.md lists "
    "others, and GET /v1/models says of each that is served whether it sees)"
)
"""What a client can do whose model does not see."""


def check_size(given: Any, path: str, *, most: int = MAX_MESSAGES, what: str = "entries") -> list[Any]:
    """Return the array of a request's messages or items, of which a lone one may come without an array.

    most: the largest number of entries. what: the word for entries in the error message.
    Raises BadRequestError if it is no array, or has too many entries, or its entries too many parts in all.
    """
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list):
        kinds = {str: "a string", bool: "a boolean", int: "an integer", float: "a decimal number"}
        shown = kinds.get(type(given), "null")
        raise bad_field(path, f"must be an array, not {shown}", "invalid_type")
    if len(given) > most:
        raise _too_many(path, len(given), most, what)
    parts = list(_contents(given))
    num_parts = len(parts) + sum(1 for _ in _contents(parts))
    if num_parts > MAX_PARTS:
        raise _too_many(path, num_parts, MAX_PARTS, "parts in all")
    return given


def _too_many(path: str, num: int, most: int, what: str) -> BadRequestError:
    return bad_field(path, f"has {num} {what}; at most {most} are allowed")


def _contents(given: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of messages, or of results."""
    for one in given:
        for key in ("content", "output", "summary", "tool_calls"):
            if isinstance(one, dict) and isinstance(one.get(key), list):
                yield from one[key]


def settle(messages: Iterable[Message], notes: Notes) -> tuple[Message, ...]:
    """Return the messages with an id for every call, and for every result the id of the call that it answers.

    A result that answers no call of an earlier message becomes text of the user.
    """
    made: list[Message] = []
    known: set[str] = set()
    unanswered: dict[str, None] = {}
    numbers = count(1)
    for given in messages:
        message = given
        if message.calls:
            calls = tuple(c if c.id else replace(c, id=f"call_{next(numbers)}") for c in message.calls)
            message = replace(message, calls=calls)
            known.update(call.id for call in calls)
            unanswered.update((call.id, None) for call in calls)
        elif message.role == "tool":
            if not message.call_id and unanswered:
                notes.understood(message.at, "names no call")
                message = replace(message, call_id=next(iter(unanswered)))
            if message.call_id not in known:
                notes.understood(message.at, "answers no call of an earlier message")
                message = _as_users(message)
            else:
                unanswered.pop(message.call_id, None)
        made.append(message)
    return tuple(made)


def _as_users(result: Message) -> Message:
    if all(isinstance(part, str) for part in result.parts):
        return Message("user", (f"<tool_response>\n{result.text}\n</tool_response>",), at=result.at)
    return Message("user", ("<tool_response>", *result.parts, "</tool_response>"), joint="\n", at=result.at)


def check_answerable(messages: Sequence[Message], *, sees: bool = True) -> None:
    """Refuse a newest turn that has media and nothing the model can read or see. Raises BadRequestError.

    sees: whether the model sees images. True while that is not known; then call this again once it is.
    """
    newest = [one for one in messages[newest_start(messages) :] if one.role != "system"]
    media = [part for one in newest for part in one.parts if isinstance(part, Media)]
    has_text = any(isinstance(part, str) and part.strip() for one in newest for part in one.parts)
    is_seen = sees and any(part.kind == "image" for part in media)
    if media and not has_text and not is_seen and all(one.role != "tool" for one in newest):
        at = newest[-1].at
        raise BadRequestError(
            f"'{at}' has nothing but media ({media[0].kind}), and this model reads text. Send some with it"
            f"{SEEING if media[0].kind == 'image' else ''}.",
            param=at,
            code="unsupported_content_part",
        )


def newest_start(messages: Sequence[Message]) -> int:
    """Return the index of the first message after the last answer."""
    return 1 + max((i for i, one in enumerate(messages) if one.role == "assistant"), default=-1)
