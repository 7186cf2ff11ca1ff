"""Chat messages as clients send them, and as the chat template takes them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import from_json

from server.errors import shortened
from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported


class TextPart(RequestModel):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str = Field(description="What it says.")
    prompt_cache_breakpoint: dict[str, Any] | None = Field(
        None, description="Accepted; prompts are cached by what they hold."
    )


class FunctionCall(RequestModel):
    """What the assistant called; arguments are the JSON text of an object."""

    name: str = Field(description="The function that was called.")
    arguments: str = Field(description="The JSON text of an object; empty text means no arguments.")


class ToolCall(RequestModel):
    """A call that the assistant made earlier in the conversation."""

    id: str = Field(description="What the answer of the tool calls it by.")
    type: Literal["function"] = "function"
    function: FunctionCall


def _text(given: object) -> str:
    """The text of a message's content, of which the parts stand one after another."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be a string or an array of text parts")
    for index, part in enumerate(given):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise field_error("invalid_type", "must be an object with a type", f"[{index}]")
        if part["type"] != "text":
            raise field_error(
                "unsupported_content_part",
                f"is of type '{shortened(part['type'])}', which this server does not take; send text parts",
                f"[{index}]",
            )
        if not isinstance(part.get("text"), str):
            raise field_error("invalid_type", "must be a string", f"[{index}].text")
        if not isinstance(part.get("prompt_cache_breakpoint", {}), dict | None):
            raise field_error("invalid_type", "must be an object", f"[{index}].prompt_cache_breakpoint")
        if unknown := part.keys() - TextPart.model_fields:
            raise field_error("unknown_parameter", "is unknown", f"[{index}].{min(unknown)}")
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
    """One message of a conversation. What an answer's own message holds may be sent back as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="Who says it; developer is another name of system."
    )
    content: Content | None = Field(
        None, description="Text; images, audio and files are refused. Only the assistant's may be absent."
    )
    name: str | None = Field(None, description="Handed to the chat template.")
    refusal: str | None = Field(
        None, description="Stands in for the assistant's content where there is none."
    )
    reasoning_content: str | None = Field(
        None, description="What the assistant thought, for chat templates that show earlier thinking."
    )
    reasoning: str | None = Field(None, description="Another name of reasoning_content.")
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = Field(
        None, description="What the assistant called."
    )
    tool_call_id: str | None = Field(None, description="Of a tool's message: which call it answers.")
    function_call: unsupported() = None  # type: ignore[valid-type]
    audio: unsupported() = None  # type: ignore[valid-type]
    annotations: unsupported([]) = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def fits_its_role(self) -> "Message":
        """Refuse fields that the role does not have, and a lack of those that it needs."""
        if self.role != "assistant":
            for name in _ASSISTANT_ONLY:
                if getattr(self, name) is not None:
                    raise field_error(
                        "invalid_value", "belongs in messages of the assistant only", f".{name}"
                    )
        if self.role == "tool" and self.tool_call_id is None:
            raise field_error(
                "missing_required_parameter", "is missing: it says which call this answers", ".tool_call_id"
            )
        if self.role != "tool" and self.tool_call_id is not None:
            raise field_error("invalid_value", "belongs in messages of a tool only", ".tool_call_id")
        if self.content is None and self.refusal is None and not self.tool_calls:
            raise field_error("missing_required_parameter", "is missing", ".content")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: a developer is the system, arguments are an object."""
        content = self.refusal if self.content is None else self.content
        rendered: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content,
        }
        thinking = self.reasoning if self.reasoning_content is None else self.reasoning_content
        given = {"name": self.name, "reasoning_content": thinking, "tool_call_id": self.tool_call_id}
        rendered |= {name: value for name, value in given.items() if value is not None}
        if self.tool_calls:
            rendered["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return rendered


def check_conversation(messages: Sequence[Message]) -> None:
    """Refuse what no single message shows: arguments that are no JSON, an answer to a call never made."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        for call_index, call in enumerate(message.tool_calls or ()):
            called.add(call.id)
            if not isinstance(_arguments(call.function.arguments), dict):
                at = f"[{index}].tool_calls[{call_index}].function.arguments"
                raise field_error("invalid_value", "must be the JSON text of an object", at)
        if message.role == "tool" and message.tool_call_id not in called:
            raise field_error(
                "invalid_value", "names no call of an earlier assistant message", f"[{index}].tool_call_id"
            )


def _arguments(text: str) -> object:
    """The object that arguments spell, or None if they spell no JSON. No text at all means no arguments."""
    try:
        return from_json(text, allow_inf_nan=False) if text.strip() else {}
    except ValueError:
        return None
