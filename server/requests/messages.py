"""The inputs of a chat template: the conversation, and the client's extra arguments."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, TypeAdapter, model_validator
from pydantic_core import from_json

from engine.request import PromptEnd
from server.errors import shortened
from server.tool_formats.free_text import as_arguments
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

MAX_MESSAGES = 4096
RESERVED_TEMPLATE_KEYS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "processor_kwargs",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Template arguments that the server sets itself."""


class TextPart(RequestModel):
    """A part of a message's text."""

    type: Literal["text"]
    text: str = Field(description="The text.")
    prompt_cache_breakpoint: dict[str, Any] | None = Field(
        None, description="Accepted; prompts are cached by their content."
    )


class FunctionCall(RequestModel):
    """The function that the assistant called, and its arguments."""

    name: str = Field(description="Name of the function.")
    arguments: str = Field(
        description="The arguments: a JSON object as a string. An empty string means no arguments."
    )


class FunctionToolCall(RequestModel):
    """A call of a function that the assistant made earlier in the conversation."""

    id: str = Field(description="Id of the call; the tool's message refers to it in tool_call_id.")
    type: Literal["function"] = "function"
    function: FunctionCall


class CustomCall(RequestModel):
    """The free-form tool that the assistant called, and its input."""

    name: str = Field(description="Name of the tool.")
    input: str = Field(description="The input, as text.")


class CustomToolCall(RequestModel):
    """A call of a free-form tool that the assistant made earlier in the conversation."""

    id: str = Field(description="Id of the call; the tool's message refers to it in tool_call_id.")
    type: Literal["custom"]
    custom: CustomCall

    @property
    def function(self) -> FunctionCall:
        """The call of the function that the model is shown in the tool's place."""
        return FunctionCall(name=self.custom.name, arguments=as_arguments(self.custom.input))


AnyToolCall = FunctionToolCall | CustomToolCall
_CALLS = {"function": FunctionToolCall, "custom": CustomToolCall}
ToolCall = Annotated[
    AnyToolCall,
    PlainValidator(tagged_union(_CALLS, default="function"), json_schema_input_type=AnyToolCall),
]


_PARTS = TypeAdapter(list[TextPart])


def _text(given: object) -> str:
    """Return the text of a message's content, with its parts joined."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be a string or an array of text parts")
    for index, part in enumerate(given):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise field_error(
                "invalid_type", "must be an object with a type, which is a string", f"[{index}]"
            )
        if part["type"] != "text":
            raise field_error(
                "unsupported_content_part",
                f"is of type '{shortened(part['type'])}', which is not supported; send text parts",
                f"[{index}]",
            )
        if not isinstance(part.get("text"), str):
            raise field_error("invalid_type", "must be a string", f"[{index}].text")
        if not isinstance(part.get("prompt_cache_breakpoint", {}), dict | None):
            raise field_error("invalid_type", "must be an object", f"[{index}].prompt_cache_breakpoint")
    if any(part.keys() - TextPart.model_fields for part in given):
        _PARTS.validate_python(given)
    return "".join(part["text"] for part in given)


Content = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | list[TextPart])]

_ASSISTANT_ONLY = (
    "refusal",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "function_call",
    "audio",
    "annotations",
)


class Message(RequestModel):
    """One message of a conversation. The message of an earlier answer may be sent back unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="Author of the message. developer is treated as system."
    )
    content: Content | None = Field(
        None,
        description="The text, as a string or as text parts; images, audio and files are refused. May be "
        "null only for the assistant, with tool_calls or refusal.",
    )
    name: str | None = Field(None, description="Name of the author; passed to the chat template.")
    refusal: str | None = Field(
        None, description="The assistant's refusal; used as its content if that is null."
    )
    reasoning_content: str | None = Field(
        None, description="The assistant's reasoning; used by chat templates that show earlier reasoning."
    )
    reasoning: str | None = Field(None, description="Another name for reasoning_content.")
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = Field(
        None, description="The tool calls that the assistant made."
    )
    tool_call_id: str | None = Field(
        None, description="Id of the tool call that a tool's message answers; required there."
    )
    function_call: unsupported() = None  # type: ignore[valid-type]
    audio: unsupported() = None  # type: ignore[valid-type]
    annotations: unsupported([]) = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def check_role(self) -> "Message":
        """Refuse fields that the role does not have, and missing fields that it needs."""
        if self.role != "assistant":
            for name in _ASSISTANT_ONLY:
                if getattr(self, name) is not None:
                    raise field_error(
                        "invalid_value", "is allowed only in messages of the assistant", f".{name}"
                    )
        if self.role == "tool" and self.tool_call_id is None:
            raise field_error(
                "missing_required_parameter",
                "is missing; a tool's message needs the id of the call that it answers",
                ".tool_call_id",
            )
        if self.role != "tool" and self.tool_call_id is not None:
            raise field_error(
                "invalid_value", "is allowed only in messages with the role tool", ".tool_call_id"
            )
        if self.content is None and self.refusal is None and not self.tool_calls:
            raise field_error("missing_required_parameter", "is missing", ".content")
        return self

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates expect it: developer becomes system, arguments an object."""
        content = self.refusal if self.content is None else self.content
        rendered: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content,
        }
        reasoning = self.reasoning if self.reasoning_content is None else self.reasoning_content
        given = {"name": self.name, "reasoning_content": reasoning, "tool_call_id": self.tool_call_id}
        rendered |= {name: value for name, value in given.items() if value is not None}
        if self.tool_calls:
            rendered["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return rendered


def _check_conversation(messages: list[Message]) -> list[Message]:
    """Refuse arguments that are not JSON objects, and tool messages that answer no earlier call."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        for call_index, call in enumerate(message.tool_calls or ()):
            called.add(call.id)
            if not isinstance(_arguments(call.function.arguments), dict):
                at = f"[{index}].tool_calls[{call_index}].function.arguments"
                raise field_error("invalid_value", "must be a JSON object as a string", at)
        if message.role == "tool" and message.tool_call_id not in called:
            raise field_error(
                "invalid_value", "matches no tool call of an earlier message", f"[{index}].tool_call_id"
            )
    return messages


def _arguments(text: str) -> object:
    """Parse the JSON of a call's arguments; return None if it is invalid, and {} for an empty string."""
    try:
        return from_json(text, allow_inf_nan=False) if text.strip() else {}
    except ValueError:
        return None


def _template_keys(given: dict[str, Any]) -> dict[str, Any]:
    for key in sorted(given.keys() & RESERVED_TEMPLATE_KEYS):
        raise field_error("invalid_value", "is reserved: the server sets it. Leave it out", f".{key}")
    return given


Messages = Annotated[
    list[Message], Field(min_length=1, max_length=MAX_MESSAGES), AfterValidator(_check_conversation)
]
TemplateArguments = Annotated[dict[str, Any], AfterValidator(_template_keys)]


def check_continued(messages: Sequence[Message], continues: bool, opens: bool | None) -> None:
    """Refuse to continue a last message that is no text of the assistant, or to open an answer too."""
    if not continues:
        return
    if opens:
        phrase = "cannot be combined with continue_final_message: true; leave it out"
        raise field_error("invalid_value", phrase, "add_generation_prompt")
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls or not (last.for_template()["content"] or "").strip():
        phrase = "needs a last message of the assistant that has content and no tool calls"
        raise field_error("invalid_value", phrase, "continue_final_message")


def prompt_end(continues: bool, opens: bool | None) -> PromptEnd:
    """Return where a conversation's prompt ends."""
    if continues:
        return "final_message"
    return "messages" if opens is False else "answer"
