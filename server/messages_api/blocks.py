"""Content blocks of messages: text, thinking, tool use and tool results."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from server.validation.field_errors import field_error
from server.validation.fields import RequestModel, unsupported
from server.validation.unions import tagged_union

MAX_BLOCKS = 8192
"""Maximum content blocks of a whole conversation: validating each takes time."""
_TEXT_ONLY = "but this server accepts only text; send text blocks"
_REFUSED = {
    "image": _TEXT_ONLY,
    "document": _TEXT_ONLY,
    "search_result": "which is not supported; send its text as a text block",
    "redacted_thinking": "which only the server that made it can read; leave the block out",
}
_CITATIONS = {"phrase": "is not supported; leave it out", "description": "Only null or an empty array."}
_TOOLSETS = {"phrase": "is not supported: this server has no toolsets", "description": "Only null."}


class CacheControl(RequestModel):
    """A breakpoint of Anthropic's prompt cache. Ignored: every prompt is cached by its content."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = Field("5m", description="Accepted; has no effect.")


class Block(RequestModel):
    """The fields that all block types except thinking have."""

    cache_control: CacheControl | None = Field(
        None, description="Accepted; prompts are cached by their content."
    )


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str = Field(description="The text; text blocks of the user are joined with line breaks.")
    citations: unsupported([], **_CITATIONS) = None  # type: ignore[valid-type]


class ThinkingBlock(RequestModel):
    """Earlier thinking of the assistant, for chat templates that show it."""

    type: Literal["thinking"]
    thinking: str = Field(description="The thinking.")
    signature: str = Field("", description="Accepted; signatures are neither made nor verified.")


class DirectCaller(RequestModel):
    """Marks a tool call as made by the model itself."""

    type: Literal["direct"]


class ToolUseBlock(Block):
    """A tool call that the assistant made earlier."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1, description="The id that the tool result refers to.")
    name: str = Field(min_length=1, description="The name of the tool.")
    input: dict[str, Any] = Field(description="The arguments of the call.")
    caller: DirectCaller | None = Field(None, description="Only direct.")
    toolset_name: unsupported(**_TOOLSETS) = None  # type: ignore[valid-type]


def as_blocks(given: object) -> object:
    """Return a string as one text block, an array unchanged. Refuse anything else, and too many blocks."""
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be a string or an array of blocks")
    if len(given) > MAX_BLOCKS:
        raise too_many(len(given), MAX_BLOCKS)
    return given


def too_many(num: int, limit: int, noun: str = "entries") -> PydanticCustomError:
    """Return the error for an array that is too long; it is raised before the entries are validated."""
    return field_error("invalid_value", f"has {num} {noun}; at most {limit} are allowed")


_TextOnly = Annotated[
    TextBlock,
    PlainValidator(tagged_union({"text": TextBlock}, refused=_REFUSED), json_schema_input_type=TextBlock),
]
Texts = Annotated[list[_TextOnly], BeforeValidator(as_blocks, json_schema_input_type=str | list[TextBlock])]
"""Text, as a string or as text blocks."""


class ToolResultBlock(Block):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(description="The id of a tool_use block in an earlier message.")
    content: Texts = Field([], description="A string, or text blocks; images and documents are refused.")
    is_error: bool = Field(
        False, description="Whether the call failed; the text shown to the model then starts with 'Error: '."
    )
    toolset_name: unsupported(**_TOOLSETS) = None  # type: ignore[valid-type]

    @property
    def text(self) -> str:
        """The result in the form that the model is shown."""
        text = join_texts(self.content)
        is_marked = text.lower().startswith("error")
        return f"Error: {text}".rstrip() if self.is_error and not is_marked else text


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


def join_texts(texts: Sequence[TextBlock]) -> str:
    """Join text blocks with line breaks."""
    return "\n".join(block.text for block in texts)
