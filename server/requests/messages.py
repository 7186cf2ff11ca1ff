"""The inputs of a chat template: the conversation, and the client's extra arguments."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, InstanceOf, WithJsonSchema

from engine.request import PromptEnd
from server.conversation.model import Message, Tool, ToolChoice
from server.validation.field_errors import field_error

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


def _template_keys(given: dict[str, Any]) -> dict[str, Any]:
    for key in sorted(given.keys() & RESERVED_TEMPLATE_KEYS):
        raise field_error("invalid_value", "is reserved: the server sets it. Leave it out", f".{key}")
    return given


_OBJECTS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}
Messages = Annotated[
    tuple[InstanceOf[Message], ...], Field(min_length=1), WithJsonSchema({**_OBJECTS, "minItems": 1})
]
Tools = Annotated[tuple[InstanceOf[Tool], ...], WithJsonSchema(_OBJECTS)]
ToolChoiceField = Annotated[
    InstanceOf[ToolChoice], WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]
"""The parts of a conversation in the normal form; the schema is that of the request."""
TemplateArguments = Annotated[dict[str, Any], AfterValidator(_template_keys)]


def check_continued(messages: Sequence[Message], continues: bool, opens: bool | None) -> None:
    """Refuse to continue a last message that is no text of the assistant, or to open an answer too."""
    if not continues:
        return
    if opens:
        phrase = "cannot be combined with continue_final_message: true; leave it out"
        raise field_error("invalid_value", phrase, "add_generation_prompt")
    if not messages[-1].can_continue:
        phrase = "needs a last message of the assistant that ends with text and has no tool calls"
        raise field_error("invalid_value", phrase, "continue_final_message")


def prompt_end(continues: bool, opens: bool | None) -> PromptEnd:
    """Return where a conversation's prompt ends."""
    if continues:
        return "final_message"
    return "messages" if opens is False else "answer"
