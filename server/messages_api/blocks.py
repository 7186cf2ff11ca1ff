"""What messages hold: blocks of text, of thinking, of calls and of their results."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

MAX_BLOCKS = 8192
"""Blocks of a whole conversation: each takes time before anything else can be found wrong."""
_TEXT_ONLY = "but this model reads text alone; send text blocks"
_REFUSED = {
    "image": _TEXT_ONLY,
    "document": _TEXT_ONLY,
    "search_result": "which this server does not take; send its text as a text block",
    "redacted_thinking": "which only the server that made it can read; leave the block out",
}
_CITATIONS = {"phrase": "is not supported; leave it out", "description": "Only null or an empty array."}
_TOOLSETS = {"phrase": "is not supported: there are no toolsets here", "description": "Only null."}


class CacheControl(RequestModel):
    """Where Anthropic's cache would have a breakpoint. Here every prompt is cached by what it holds."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = Field("5m", description="Accepted; does nothing here.")


class Block(RequestModel):
    """What all blocks may have."""

    cache_control: CacheControl | None = Field(
        None, description="Accepted; does nothing: prompts are cached by what they hold."
    )


class TextBlock(Block):
    """A piece of text."""

    type: Literal["text"]
    text: str = Field(description="The text; blocks of the user stand on lines of their own.")
    citations: unsupported([], **_CITATIONS) = None  # type: ignore[valid-type]


class ThinkingBlock(RequestModel):
    """What the assistant thought, for chat templates that show earlier thinking."""

    type: Literal["thinking"]
    thinking: str = Field(description="What was thought.")
    signature: str = Field("", description="Accepted; nothing is signed here, and nothing checked.")


class DirectCaller(RequestModel):
    """The model itself made the call."""

    type: Literal["direct"]


class ToolUseBlock(Block):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1, description="Names the call, for its result.")
    name: str = Field(min_length=1, description="The tool that was called.")
    input: dict[str, Any] = Field(description="What it was called with.")
    caller: DirectCaller | None = Field(None, description="Only the model itself.")
    toolset_name: unsupported(**_TOOLSETS) = None  # type: ignore[valid-type]


def as_blocks(given: object) -> object:
    """A string as the one block of text that it is short for; anything else as it is."""
    if isinstance(given, list) and len(given) > MAX_BLOCKS:
        raise too_many(len(given), MAX_BLOCKS)
    return [{"type": "text", "text": given}] if isinstance(given, str) else given


def too_many(num: int, most: int, what: str = "entries") -> PydanticCustomError:
    """The error of an array that is too long, which is not looked at any further."""
    return field_error("invalid_value", f"has {num} {what}; at most {most} are allowed")


_TextOnly = Annotated[
    TextBlock,
    PlainValidator(tagged_union({"text": TextBlock}, refused=_REFUSED), json_schema_input_type=TextBlock),
]
Texts = Annotated[list[_TextOnly], BeforeValidator(as_blocks, json_schema_input_type=str | list[TextBlock])]
"""Text, as a string or in blocks."""


class ToolResultBlock(Block):
    """What a call came to."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(description="The id of a call in an earlier message.")
    content: Texts = Field([], description="Text; images and documents are refused.")
    is_error: bool = Field(False, description="The model reads 'Error: ' before the text then.")
    toolset_name: unsupported(**_TOOLSETS) = None  # type: ignore[valid-type]

    @property
    def text(self) -> str:
        """The result as the model reads it."""
        text = joined(self.content)
        is_told = text.lower().startswith("error")
        return f"Error: {text}".rstrip() if self.is_error and not is_told else text


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
_KINDS = {
    "text": TextBlock,
    "thinking": ThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
}
_AnyBlock = Annotated[
    ContentBlock, PlainValidator(tagged_union(_KINDS, refused=_REFUSED), json_schema_input_type=ContentBlock)
]
Content = Annotated[
    list[_AnyBlock], BeforeValidator(as_blocks, json_schema_input_type=str | list[ContentBlock])
]


def joined(texts: Sequence[TextBlock]) -> str:
    """Blocks of text as one text, each on lines of its own."""
    return "\n".join(block.text for block in texts)
