"""The bodies of /v1/messages and /v1/messages/count_tokens: every field, its type and its limits.

Fields of Anthropic's API that make no difference on a local server are accepted and ignored. Unsupported
fields that would change the response are refused by name.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from server.conversation.settled import MAX_MESSAGES
from server.errors import shortened
from server.messages_api.blocks import (
    MAX_BLOCKS,
    Content,
    Texts,
    ToolResultBlock,
    ToolUseBlock,
    too_many,
)
from server.messages_api.thinking import Thinking
from server.messages_api.tools import NamedChoice, ToolChoice, Tools
from server.requests.drafts import DraftFields
from server.requests.models import KeepAlive
from server.requests.streaming_decoding import StreamingDecodingFields
from server.validation.field_errors import field_error
from server.validation.fields import (
    INT32_MAX,
    AcceptsPeerFields,
    Limit,
    RequestModel,
    Stops,
    no_effect,
    unsupported,
)

_BLOCKS_OF_ROLES = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}


class InputMessage(RequestModel):
    """A message of the conversation. The content of a response can be sent back unchanged."""

    role: Literal["user", "assistant", "system"] = Field(
        description="The author. Consecutive messages of the same role are merged into one."
    )
    content: Content = Field(description="A string, or content blocks of types that the role allows.")

    @model_validator(mode="after")
    def check_blocks(self) -> "InputMessage":
        """Refuse blocks that the role does not allow, and empty content unless it is the assistant's."""
        allowed = _BLOCKS_OF_ROLES[self.role]
        for index, block in enumerate(self.content):
            if block.type not in allowed:
                phrase = f"is '{block.type}', which is not allowed in a message of the {self.role}"
                raise field_error("invalid_value", phrase, f".content[{index}].type")
        if not self.content and self.role != "assistant":
            raise field_error("invalid_value", "is empty; send at least one block", ".content")
        return self


def _check_conversation(given: list[InputMessage]) -> list[InputMessage]:
    """Refuse tool results without an earlier tool call, and a conversation that ends with the assistant."""
    called: set[str] = set()
    for index, message in enumerate(given):
        for block_index, block in enumerate(message.content):
            if isinstance(block, ToolUseBlock):
                called.add(block.id)
            elif isinstance(block, ToolResultBlock) and block.tool_use_id not in called:
                raise field_error(
                    "invalid_value",
                    "names no tool_use block of an earlier message",
                    f"[{index}].content[{block_index}].tool_use_id",
                )
    if given[-1].role == "assistant":
        raise field_error(
            "unsupported_value",
            "is 'assistant', but prefilled responses are not supported; end with a message of role 'user'",
            f"[{len(given) - 1}].role",
        )
    return given


def _check_length(given: object) -> object:
    if not isinstance(given, list):
        return given
    if len(given) > MAX_MESSAGES:
        raise too_many(len(given), MAX_MESSAGES)
    blocks = _contents(given)
    num_blocks = len(blocks) + len(_contents(blocks))
    if num_blocks > MAX_BLOCKS:
        raise too_many(num_blocks, MAX_BLOCKS, "blocks in all")
    return given


def _contents(given: Sequence[object]) -> list[object]:
    """Return the content blocks of messages, or of tool results, before they are validated."""
    contents = [item.get("content") for item in given if isinstance(item, dict)]
    return [block for content in contents if isinstance(content, list) for block in content]


Messages = Annotated[
    list[InputMessage],
    Field(min_length=1),
    BeforeValidator(_check_length, json_schema_input_type=list[InputMessage]),
    AfterValidator(_check_conversation),
]


class JsonOutput(RequestModel):
    """JSON output that conforms to a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(
        alias="schema",
        description="The JSON schema, with the same limits as response_format in chat completions.",
    )


class OutputConfig(RequestModel):
    """Configuration of the output."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="How much to think, for chat templates that support it."
    )
    format: JsonOutput | None = Field(None, description="The format of the output; enforced.")
    task_budget: unsupported() = None  # type: ignore[valid-type]


class Diagnostics(RequestModel):
    """A request for the reason why the prompt was not cached."""

    previous_message_id: str | None = Field(None, description="The id of an earlier message.")


def _thread(_: object) -> None:
    raise field_error(
        "thread_unsupported_request",
        "is not supported: conversations are not stored here; send the whole conversation without it",
    )


_REMOTE = {
    "phrase": "is not supported: this server has no containers and connects to no other server; leave it out",
    "description": "Not supported: this server has no containers and connects to no other server.",
}


class ConversationFields(AcceptsPeerFields):
    """The fields that determine the prompt, common to both bodies."""

    droppable = frozenset({"draft", "diagnostics", "output_config.effort", "thinking.display"})

    model: str | None = Field(
        None, description="The model's name or one of its aliases. null: the served model."
    )
    messages: Messages = Field(
        description="The conversation. It must end with a message of the user: no prefilled responses."
    )
    system: Texts = Field([], description="The system prompt, as a string or as text blocks.")
    tools: Tools = Field([], description="Custom tools; Anthropic's own are refused by name.")
    tool_choice: ToolChoice | None = Field(
        None,
        description="auto: the model decides; any: it must call a tool; tool: it must call this one; none: "
        "it must not.",
    )
    thinking: Thinking | None = Field(
        None, description="Whether to think before responding. By default not, if the template has a choice."
    )
    output_config: OutputConfig | None = Field(
        None, description="The format of the output, and how much to think."
    )
    output_format: JsonOutput | None = Field(None, description="Older name of output_config.format.")
    cache_control: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    speed: no_effect("there is one speed.") = None  # type: ignore[valid-type]

    billing_policy: no_effect("nothing is billed.") = None  # type: ignore[valid-type]
    context_management: unsupported(  # type: ignore[valid-type]
        {},
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        description="Left out: the whole conversation is shown.",
    ) = None
    mcp_servers: unsupported([], **_REMOTE) = None  # type: ignore[valid-type]
    compaction: unsupported() = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def check_tool_choice(self) -> "ConversationFields":
        """Refuse a tool choice that needs a tool which is not among the tools."""
        names = [tool.name for tool in self.tools]
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool") and not names:
            raise field_error("invalid_value", "is allowed only with tools; send some", "tool_choice")
        if isinstance(self.tool_choice, NamedChoice) and self.tool_choice.name not in names:
            phrase = f"is '{shortened(self.tool_choice.name)}', which is not among the tools"
            raise field_error("invalid_value", phrase, "tool_choice.name")
        return self

    @model_validator(mode="after")
    def check_format(self) -> "ConversationFields":
        """Refuse a request with two output formats."""
        if self.output_format is not None and self.output_config is not None and self.output_config.format:
            raise field_error(
                "invalid_value", "and output_config.format are both set; send only one", "output_format"
            )
        return self

    @property
    def requested_format(self) -> JsonOutput | None:
        """The format of the output, from either field."""
        return self.output_format or (self.output_config.format if self.output_config else None)


class MessagesRequest(ConversationFields, StreamingDecodingFields):
    """The body of POST /v1/messages."""

    max_tokens: Limit | None = Field(
        None, description="Maximum output tokens; the context may allow fewer. null: as many as it allows."
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=2,
        description="Sampling temperature. 0: always the most likely token. Higher is more random.",
    )
    top_p: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Sample only from the most likely tokens whose probabilities add up to this. 1: "
        "no limit.",
    )
    top_k: int = Field(
        0,
        ge=-1,
        le=INT32_MAX,
        description="Sample only from this many of the most likely tokens. 0, -1, or the vocabulary's size "
        "or more: no limit.",
    )
    stop_sequences: Stops = Field(
        (), description="Strings that end the output; stop_sequence in the response names the one that did."
    )
    stream: bool = Field(False, description="Whether to stream the message as events while it is generated.")
    draft: DraftFields = Field(
        DraftFields(), description="How to draft for this request. Not in Anthropic's API."
    )
    keep_alive: KeepAlive = None
    metadata: no_effect("has no effect.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is one tier, standard.") = None  # type: ignore[valid-type]
    inference_geo: no_effect("inference runs on this server.") = None  # type: ignore[valid-type]
    diagnostics: Diagnostics | None = Field(
        None,
        description="The response says 'unavailable': the server does not know why a prompt was not cached.",
    )
    container: unsupported(**_REMOTE) = None  # type: ignore[valid-type]
    thread: Annotated[Any, AfterValidator(_thread)] = Field(
        None, description="Refused, with an error code that makes the SDK send whole conversations instead."
    )
    fallbacks: unsupported([]) = None  # type: ignore[valid-type]
    fallback_credit_token: no_effect("nothing is billed.") = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def check_budget(self) -> "MessagesRequest":
        """Refuse a thinking budget that is not below max_tokens, as Anthropic does."""
        budget = self.thinking.budget_tokens if self.thinking else None
        if budget is not None and self.max_tokens is not None and budget >= self.max_tokens:
            phrase = f"is {budget}, but must be less than max_tokens, {self.max_tokens}"
            raise field_error("invalid_value", phrase, "thinking.budget_tokens", leaves_out=True)
        return self


class CountTokensRequest(ConversationFields):
    """The body of POST /v1/messages/count_tokens."""
