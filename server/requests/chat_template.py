"""The inputs of a chat template: the conversation, and the client's extra arguments."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from server.requests.messages import Message, check_conversation
from server.validation.field_errors import field_error

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


def _template_keys(given: dict[str, Any]) -> dict[str, Any]:
    for key in sorted(given.keys() & RESERVED_TEMPLATE_KEYS):
        raise field_error("invalid_value", "is reserved: the server sets it. Leave it out", f".{key}")
    return given


def _conversation(given: list[Message]) -> list[Message]:
    check_conversation(given)
    return given


Messages = Annotated[
    list[Message], Field(min_length=1, max_length=MAX_MESSAGES), AfterValidator(_conversation)
]
TemplateArguments = Annotated[dict[str, Any], AfterValidator(_template_keys)]
