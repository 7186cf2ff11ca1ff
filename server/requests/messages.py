"""The inputs of a chat template: the conversation, and the client's extra arguments."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, InstanceOf, WithJsonSchema

from reprise.engine.interface.request import PromptEnd
from reprise.server.conversation.model import Message, Tool, ToolChoice
from reprise.server.conversation.tools import MAX_TOOLS
from reprise.server.validation.field_errors import field_error
from reprise.server.validation.fields import neutral
from reprise.server.validation.peer_fields import as_switch

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


SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Template arguments with which thinking is switched on and off."""


def _template_keys(given: dict[str, Any]) -> dict[str, Any]:
    for key in sorted(given.keys() & RESERVED_TEMPLATE_KEYS):
        raise field_error("invalid_value", "is reserved: the server sets it. Leave it out", f".{key}")
    # To a template any text is true, "false" too.
    return {key: as_switch(value) if key in SWITCHES else value for key, value in given.items()}


_OBJECTS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}


def _choices(*modes: str) -> list[dict[str, Any]]:
    named = {"type": "object", "required": ["type"], "properties": {"type": {"enum": list(modes)}}}
    return [{"enum": list(modes)}, named]


_MODES = ("none", "auto", "any", "required")
_NAME: dict[str, Any] = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_NAMED = [
    {**_NAME, "properties": {**_NAME["properties"], "type": {"type": "null"}}},
    {"type": "object", "required": ["function"], "properties": {"type": {"type": "null"}, "function": _NAME}},
    *(
        {"type": "object", "required": ["type", key], "properties": {"type": {"const": kind}, key: schema}}
        for kind in ("function", "custom", "tool")
        for key, schema in (("name", {"type": "string"}), ("function", _NAME))
    ),
]
_ALLOWED = {
    "type": "object",
    "required": ["type", "tools"],
    "properties": {
        "type": {"const": "allowed_tools"},
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "items": _NAME, "minItems": 1, "maxItems": MAX_TOOLS},
    },
}
TOOLS_SCHEMA = _OBJECTS
TOOL_CHOICE_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "object"}]}
ONE_END = {
    "anyOf": [
        neutral("continue_final_message", values=(None, False)),
        neutral("add_generation_prompt", values=(None, False)),
    ]
}
"""A rule of all bodies of chats: a prompt ends in the last message, or opens the answer."""
CHOICE_NEEDS_TOOLS = {
    "anyOf": [
        {
            "required": ["tools"],
            "properties": {
                "tools": {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object"}]},
                "tool_choice": {"anyOf": [{"type": "null"}, *_choices(*_MODES), *_NAMED, _ALLOWED]},
            },
        },
        {"properties": {"tool_choice": {"anyOf": [{"type": "null"}, *_choices("none", "auto")]}}},
    ]
}
"""A rule of all bodies with tools, as JSON schema."""
MESSAGES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "allOf": [
            {"properties": {"role": {"type": "string"}}},
            {
                "anyOf": [
                    {"required": ["role"]},
                    {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}},
                ]
            },
        ],
        "additionalProperties": True,
    },
}
Messages = Annotated[
    tuple[InstanceOf[Message], ...], Field(min_length=1), WithJsonSchema({**MESSAGES_SCHEMA, "minItems": 1})
]
Tools = Annotated[tuple[InstanceOf[Tool], ...], WithJsonSchema(TOOLS_SCHEMA)]
ToolChoiceField = Annotated[
    InstanceOf[ToolChoice],
    WithJsonSchema(TOOL_CHOICE_SCHEMA),
    Field(json_schema_extra={"default": "auto"}),
]
"""The parts of a conversation in the normal form; the schema is that of the request."""
TemplateArguments = Annotated[dict[str, Any], AfterValidator(_template_keys)]


def check_continued(messages: Sequence[Message], continues: bool, opens: bool | None) -> None:
    """Refuse to continue a last message that is not text of the assistant, or to also open an answer.

    continues: continue_final_message. opens: add_generation_prompt.
    """
    if not continues:
        return
    if opens:
        phrase = "cannot be combined with continue_final_message: true; leave it out"
        raise field_error("invalid_value", phrase, "add_generation_prompt")
    if not messages[-1].can_continue:
        phrase = "needs a last message of the assistant that ends with text and has no tool calls"
        raise field_error("invalid_value", phrase, "continue_final_message")


def prompt_end(continues: bool, opens: bool | None) -> PromptEnd:
    """Return where a prompt ends. continues: continue_final_message. opens: add_generation_prompt."""
    if continues:
        return "final_message"
    return "messages" if opens is False else "answer"
