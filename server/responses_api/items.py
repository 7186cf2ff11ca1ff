"""The items of a conversation, as clients send them and as the server stores them.

Output items of a response can be sent back unchanged.
"""

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, model_validator

from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

REASONING_PREFIX = "reprise:"
"""Prefix of encrypted_content; the reasoning follows in base64."""

_DIRECT = {"type": "direct"}

ItemStatus = Annotated[
    Literal["in_progress", "completed", "incomplete"],
    Field(description="Accepted; not shown to the model."),
]
ItemId = Annotated[str | None, Field(description="Accepted; stored items get a new id.")]


class InputText(RequestModel):
    """Text in a message, or in the output of a function."""

    type: Literal["input_text"]
    text: str = Field(description="The text.")
    prompt_cache_breakpoint: dict[str, Any] | None = Field(
        None, description="Accepted; prompts are cached by their content."
    )


class OutputText(RequestModel):
    """Text in an earlier message of the assistant."""

    type: Literal["output_text"]
    text: str = Field(description="The text.")
    annotations: list[dict[str, Any]] = Field([], description="Accepted; not shown to the model.")
    logprobs: list[dict[str, Any]] = Field([], description="Accepted; not shown to the model.")


class Refusal(RequestModel):
    """A refusal in an earlier message of the assistant."""

    type: Literal["refusal"]
    refusal: str = Field(description="The text of the refusal.")


class ReasoningText(RequestModel):
    """Text in an earlier reasoning item."""

    type: Literal["reasoning_text"]
    text: str = Field(description="The text.")


class SummaryText(RequestModel):
    """A summary in an earlier reasoning item."""

    type: Literal["summary_text"]
    text: str = Field(description="The text.")


_PARTS = {"input_text": InputText, "output_text": OutputText, "refusal": Refusal}
_TEXT_ONLY = {"input_": "but this server accepts only text; send parts of type input_text"}
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
    """A message of the conversation; with the role assistant, an earlier response."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"] = Field(
        description="The author; developer means the same as system."
    )
    content: Content = Field(description="A string, or text parts.")
    id: ItemId = None
    status: ItemStatus = "completed"
    phase: Literal["commentary", "final_answer"] | None = Field(
        None, description="Accepted; not shown to the model."
    )

    @property
    def text(self) -> str:
        """The text of all parts."""
        return _text_of(self.content)

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """Return the JSON object to store and to list."""
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


class _Call(RequestModel):
    """The fields that both kinds of calls have."""

    call_id: str = Field(description="The id that the output refers to.")
    name: str = Field(description="The name of the tool.")
    id: ItemId = None
    status: ItemStatus = "completed"
    caller: unsupported(_DIRECT) = None  # type: ignore[valid-type]
    namespace: str | None = Field(None, description="The namespace that the tool is in.")
    is_async: unsupported(False) = Field(None, alias="async")  # type: ignore[valid-type]

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """Return the JSON object to store and to list."""
        shown = {"type", "call_id", "name", "arguments", "input"} | (
            {"status"} if isinstance(self, FunctionCall) else set()
        )
        where = {} if self.namespace is None else {"namespace": self.namespace}
        return {"id": item_id, **self.model_dump(include=shown), **where}


class FunctionCall(_Call):
    """A function call that the model made earlier."""

    type: Literal["function_call"]
    arguments: str = Field(description="The arguments: a JSON object as text.")


class CustomToolCall(_Call):
    """A call of a free-form tool that the model made earlier."""

    type: Literal["custom_tool_call"]
    input: str = Field(description="The input, as text.")


class _CallOutput(RequestModel):
    """The fields that both kinds of outputs have."""

    call_id: str = Field(description="The call_id of the call that was made.")
    output: Content = Field(description="The output: a string, or text parts.")
    id: ItemId = None
    status: ItemStatus = "completed"
    caller: unsupported(_DIRECT) = None  # type: ignore[valid-type]
    name: str | None = Field(None, description="Accepted; the call has the name.")
    namespace: str | None = Field(None, description="Accepted; the call has the namespace.")

    @property
    def text(self) -> str:
        """The text of all parts."""
        return _text_of(self.output)

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """Return the JSON object to store and to list."""
        shown = {"type", "call_id", "status"} if isinstance(self, FunctionCallOutput) else {"type", "call_id"}
        return {"id": item_id, **self.model_dump(include=shown), "output": self.text}


class FunctionCallOutput(_CallOutput):
    """The output of a function for an earlier function call."""

    type: Literal["function_call_output"]


class CustomToolCallOutput(_CallOutput):
    """The output of a free-form tool for an earlier call."""

    type: Literal["custom_tool_call_output"]


class ReasoningItem(RequestModel):
    """Earlier reasoning, for chat templates that show it."""

    type: Literal["reasoning"]
    summary: list[SummaryText] = Field(
        [], description="Accepted; not shown to the model, which sees the content."
    )
    content: list[ReasoningText] = Field([], description="The reasoning.")
    encrypted_content: str | None = Field(
        None, description="Used if content is empty. That of other servers is left out."
    )
    id: ItemId = None
    status: ItemStatus = "completed"

    @model_validator(mode="after")
    def check_encrypted_content(self) -> "ReasoningItem":
        """Refuse encrypted_content that only looks like this server's."""
        content = self.encrypted_content
        if content is not None and not self.is_foreign and decode_reasoning(content) is None:
            raise field_error(
                "invalid_value",
                "was not made by this server, which cannot read it; leave it out",
                ".encrypted_content",
            )
        return self

    @property
    def is_foreign(self) -> bool:
        """Whether encrypted_content is from another server, which alone can read it."""
        content = self.encrypted_content
        return content is not None and not content.startswith(REASONING_PREFIX)

    @property
    def text(self) -> str:
        """The reasoning, from the content or else from encrypted_content."""
        if self.content or self.encrypted_content is None:
            return _text_of(self.content)
        return decode_reasoning(self.encrypted_content) or ""

    def as_listed(self, item_id: str) -> dict[str, Any]:
        """Return the JSON object to store and to list."""
        content = [{"type": "reasoning_text", "text": self.text}]
        return {"id": item_id, "type": self.type, "summary": [], "content": content, "status": self.status}


class ItemReference(RequestModel):
    """A reference to an item of a stored response, in place of the item."""

    type: Literal["item_reference"] = "item_reference"
    id: str = Field(description="The item's id.")


AnyCall = FunctionCall | CustomToolCall
AnyCallOutput = FunctionCallOutput | CustomToolCallOutput
ConversationItem = InputMessage | AnyCall | AnyCallOutput | ReasoningItem
AnyItem = ConversationItem | ItemReference
_KINDS: dict[str, type[RequestModel]] = {
    "message": InputMessage,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "custom_tool_call": CustomToolCall,
    "custom_tool_call_output": CustomToolCallOutput,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}
_choose = tagged_union(_KINDS, default="message")


def _item(given: object) -> Any:
    """Return the item. Without a type it is a message, or a reference if it has only an id."""
    if isinstance(given, dict) and given.get("type") is None and given.keys() <= {"type", "id"}:
        given = {**given, "type": "item_reference"}
    return _choose(given)


InputItem = Annotated[AnyItem, PlainValidator(_item, json_schema_input_type=AnyItem)]
_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[InputItem])


def parse_items(stored: list[dict[str, Any]]) -> list[ConversationItem]:
    """Parse stored items."""
    return [item for item in _ITEMS.validate_python(stored) if not isinstance(item, ItemReference)]


def encode_reasoning(reasoning: str) -> str:
    """Encode reasoning as encrypted_content, for clients that send back only that. It is not encrypted."""
    return REASONING_PREFIX + base64.b64encode(reasoning.encode()).decode()


def decode_reasoning(content: str) -> str | None:
    """Decode encrypted_content that encode_reasoning() made. Return None for any other content."""
    if not content.startswith(REASONING_PREFIX):
        return None
    try:
        return base64.b64decode(content.removeprefix(REASONING_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
