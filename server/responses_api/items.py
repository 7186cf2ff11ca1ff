"""The items of a conversation, as clients send them and as they are kept.

What an answer's output holds may be sent back as it came.
"""

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, model_validator

from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

REASONING_PREFIX = "reprise:"
"""Begins what stands in encrypted_content: the reasoning itself, in base64."""

_DIRECT = {"type": "direct"}

ItemStatus = Annotated[
    Literal["in_progress", "completed", "incomplete"],
    Field(description="Accepted; the model is not told."),
]
ItemId = Annotated[str | None, Field(description="Accepted; a new one is given where it is kept.")]


class InputText(RequestModel):
    """A piece of text of a message, or of what a function returned."""

    type: Literal["input_text"]
    text: str = Field(description="The text.")
    prompt_cache_breakpoint: dict[str, Any] | None = Field(
        None, description="Accepted; prompts are cached by what they hold."
    )


class OutputText(RequestModel):
    """A piece of text of an earlier answer."""

    type: Literal["output_text"]
    text: str = Field(description="The text.")
    annotations: list[dict[str, Any]] = Field([], description="Accepted; the model is not told.")
    logprobs: list[dict[str, Any]] = Field([], description="Accepted; the model is not told.")


class Refusal(RequestModel):
    """An earlier answer that was a refusal."""

    type: Literal["refusal"]
    refusal: str = Field(description="Its words.")


class ReasoningText(RequestModel):
    """A piece of earlier thinking."""

    type: Literal["reasoning_text"]
    text: str = Field(description="The text.")


class SummaryText(RequestModel):
    """A summary of earlier thinking."""

    type: Literal["summary_text"]
    text: str = Field(description="The text.")


_PARTS = {"input_text": InputText, "output_text": OutputText, "refusal": Refusal}
_TEXT_ONLY = {"input_": "which this server does not take: it reads text, in parts of type input_text"}
ContentPart = InputText | OutputText | Refusal


def _content(given: object) -> object:
    if isinstance(given, str):
        return [{"type": "input_text", "text": given}]
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be a string or an array of parts")
    return given


Content = Annotated[
    list[
        Annotated[
            ContentPart,
            PlainValidator(tagged_union(_PARTS, refused=_TEXT_ONLY), json_schema_input_type=ContentPart),
        ]
    ],
    BeforeValidator(_content, json_schema_input_type=str | list[ContentPart]),
]


def _text_of(content: list[Any]) -> str:
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)


class InputMessage(RequestModel):
    """What somebody said; of the assistant, an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = Field(
        description="Who said it; a developer is the system."
    )
    content: Content = Field(description="Text, or parts of it.")
    id: ItemId = None
    status: ItemStatus = "completed"
    phase: Literal["commentary", "final_answer"] | None = Field(
        None, description="Accepted; the model is not told."
    )

    @property
    def text(self) -> str:
        """All its text."""
        return _text_of(self.content)

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """The item as it is listed."""
        parts: list[dict[str, Any]] = []
        for part in self.content:
            if self.role != "assistant":
                parts.append({"type": "input_text", "text": _text_of([part])})
            elif isinstance(part, Refusal):
                parts.append({"type": "refusal", "refusal": part.refusal})
            else:
                parts.append({"type": "output_text", "text": part.text, "annotations": []})
        head = {"id": item_id, "type": "message", "role": self.role, "status": self.status}
        return {**head, "content": parts}


class FunctionCall(RequestModel):
    """A call that the model made earlier; arguments are the JSON text of an object."""

    type: Literal["function_call"]
    call_id: str = Field(description="What the output names it by.")
    name: str = Field(description="The function.")
    arguments: str = Field(description="The JSON text of an object.")
    id: ItemId = None
    status: ItemStatus = "completed"
    caller: unsupported(_DIRECT) = None  # type: ignore[valid-type]
    namespace: unsupported() = None  # type: ignore[valid-type]
    is_async: unsupported(False) = Field(None, alias="async")  # type: ignore[valid-type]

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """The item as it is listed."""
        head = {"id": item_id, "type": self.type, "call_id": self.call_id, "status": self.status}
        return {**head, "name": self.name, "arguments": self.arguments}


class FunctionCallOutput(RequestModel):
    """What a function returned to an earlier call."""

    type: Literal["function_call_output"]
    call_id: str = Field(description="Which call this answers.")
    output: Content = Field(description="What it returned: text, or parts of it.")
    id: ItemId = None
    status: ItemStatus = "completed"
    caller: unsupported(_DIRECT) = None  # type: ignore[valid-type]
    namespace: unsupported() = None  # type: ignore[valid-type]

    @property
    def text(self) -> str:
        """All its text."""
        return _text_of(self.output)

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """The item as it is listed."""
        head = {"id": item_id, "type": self.type, "call_id": self.call_id, "status": self.status}
        return {**head, "output": self.text}


class ReasoningItem(RequestModel):
    """What the model thought earlier, for templates that show it."""

    type: Literal["reasoning"]
    summary: list[SummaryText] = Field([], description="Accepted; the model is told the content.")
    content: list[ReasoningText] = Field([], description="What was thought.")
    encrypted_content: str | None = Field(
        None, description="What this server gave, in place of the content; of no other server."
    )
    id: ItemId = None
    status: ItemStatus = "completed"

    @model_validator(mode="after")
    def can_be_read(self) -> "ReasoningItem":
        """Refuse what another server has encrypted."""
        if self.encrypted_content is not None and decode_reasoning(self.encrypted_content) is None:
            raise field_error(
                "invalid_value",
                "did not come from this server and cannot be read here; leave it out",
                ".encrypted_content",
            )
        return self

    @property
    def text(self) -> str:
        """What was thought."""
        if self.content or self.encrypted_content is None:
            return _text_of(self.content)
        return decode_reasoning(self.encrypted_content) or ""

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """The item as it is listed."""
        content = [{"type": "reasoning_text", "text": self.text}]
        return {"id": item_id, "type": self.type, "summary": [], "content": content, "status": self.status}


class ItemReference(RequestModel):
    """An item of a response that is kept here, in place of the item itself."""

    type: Literal["item_reference"] = "item_reference"
    id: str = Field(description="The item's id.")


ConversationItem = InputMessage | FunctionCall | FunctionCallOutput | ReasoningItem
AnyItem = ConversationItem | ItemReference
_KINDS: dict[str, type[RequestModel]] = {
    "message": InputMessage,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}
_choose = tagged_union(_KINDS, default="message")


def _item(given: object) -> Any:
    """The item. Without a type it is a message, or a reference if it has nothing but an id."""
    if isinstance(given, dict) and given.get("type") is None and given.keys() <= {"type", "id"}:
        given = {**given, "type": "item_reference"}
    return _choose(given)


InputItem = Annotated[AnyItem, PlainValidator(_item, json_schema_input_type=AnyItem)]
_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[InputItem])


def parse_items(kept: list[dict[str, Any]]) -> list[ConversationItem]:
    """Items that were kept, as they were."""
    return [item for item in _ITEMS.validate_python(kept) if not isinstance(item, ItemReference)]


def encode_reasoning(reasoning: str) -> str:
    """Reasoning as encrypted_content, for clients that send back only that. It is no secret."""
    return REASONING_PREFIX + base64.b64encode(reasoning.encode()).decode()


def decode_reasoning(content: str) -> str | None:
    """The reasoning that encode_reasoning() was given; None if it was never here."""
    if not content.startswith(REASONING_PREFIX):
        return None
    try:
        return base64.b64decode(content.removeprefix(REASONING_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
