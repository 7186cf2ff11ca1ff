"""Messages, calls and tools, whichever API they came through."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
