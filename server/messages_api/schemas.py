"""The bodies of /v1/messages and /v1/messages/count_tokens: every field, its type and its limits.

A field that Anthropic defines and that cannot matter on a server of one's own is accepted and does nothing;
one that would change the answer, and is not there, is refused by name.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from server.errors import shortened
from server.messages_api.blocks import (
    MAX_BLOCKS,
    CacheControl,
    Content,
    Texts,
    ToolResultBlock,
    ToolUseBlock,
    too_many,
)
from server.messages_api.thinking import Thinking, ThinkingOn
from server.messages_api.tools import NamedChoice, ToolChoice, Tools
from server.requests.chat_template import MAX_MESSAGES
from server.requests.drafts import DraftFields
from server.validation.field_errors import field_error
from server.validation.fields import INT32_MAX, MAX_STOP_CHARACTERS, Count, RequestModel, unsupported

MAX_STOP_SEQUENCES = 64
_BLOCKS_OF_ROLES = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}


class InputMessage(RequestModel):
    """One turn of the conversation. What an answer holds may be sent back as it came."""

    role: Literal["user", "assistant", "system"] = Field(
        description="Turns of one role that follow each other are read as one."
    )
    content: Content = Field(description="Text, or blocks of the kinds that the role has.")

    @model_validator(mode="after")
    def fits_its_role(self) -> "InputMessage":
        """Refuse blocks that the role does not have. An answer may have been empty, a question may not."""
        taken = _BLOCKS_OF_ROLES[self.role]
        for index, block in enumerate(self.content):
            if block.type not in taken:
                phrase = f"is '{block.type}', which a message of the {self.role} does not have"
                raise field_error("invalid_value", phrase, f".content[{index}].type")
        if not self.content and self.role != "assistant":
            raise field_error("invalid_value", "is empty; send at least one block", ".content")
        return self


def _conversation(given: list[InputMessage]) -> list[InputMessage]:
    """Refuse what no single message shows: a result of a call never made, an answer to be continued."""
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
            "is 'assistant', but prefilled answers are not supported; end with a message of the user",
            f"[{len(given) - 1}].role",
        )
    return given


def _not_too_long(given: object) -> object:
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
    """What messages hold, or results of calls, before any of it is known to be right."""
    contents = [holder.get("content") for holder in given if isinstance(holder, dict)]
    return [block for content in contents if isinstance(content, list) for block in content]


Messages = Annotated[
    list[InputMessage],
    Field(min_length=1),
    BeforeValidator(_not_too_long, json_schema_input_type=list[InputMessage]),
    AfterValidator(_conversation),
]


class JsonOutput(RequestModel):
    """An answer that is JSON and follows a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(
        alias="schema", description="The schema, with the limits of response_format in chats."
    )


class OutputConfig(RequestModel):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="How long to think, for chat templates that know of it."
    )
    format: JsonOutput | None = Field(None, description="What the answer must be; enforced.")
    task_budget: unsupported() = None  # type: ignore[valid-type]


class Metadata(RequestModel):
    """Whose request it is."""

    user_id: str | None = Field(None, description="Accepted; does nothing here.")


class Diagnostics(RequestModel):
    """Asks why an earlier prompt was not in the cache."""

    previous_message_id: str | None = Field(None, description="The earlier answer that is meant.")


def _context_management(given: object) -> None:
    """Only edits that leave everything as it is."""
    keep_all = {"type": "clear_thinking_20251015", "keep": "all"}
    edits = given.get("edits", []) if isinstance(given, dict) and given.keys() <= {"edits"} else None
    if not isinstance(edits, list) or any(edit != keep_all for edit in edits):
        raise field_error("unsupported_parameter", "is not supported, but for clear_thinking that keeps all")


def _thread(_: object) -> None:
    raise field_error(
        "thread_unsupported_request",
        "is not supported: conversations are not kept here; send the whole conversation without it",
    )


_RUN_THERE = {
    "phrase": "is not supported: nothing is run, stored or fetched here; leave it out",
    "description": "Not supported: nothing is run, stored or fetched here.",
}


class ConversationFields(RequestModel):
    """What makes the prompt, in both bodies."""

    model: str | None = Field(None, description="The model or one of its aliases; the served one if absent.")
    messages: Messages = Field(
        description="The conversation. It ends with a message of the user: answers are not prefilled."
    )
    system: Texts = Field([], description="Text before the conversation, as a string or in blocks.")
    tools: Tools = Field([], description="Tools of the client's own; Anthropic's are refused by name.")
    tool_choice: ToolChoice | None = Field(
        None,
        description="auto: the model decides; any and tool: it must call one, or this one; none: it may not.",
    )
    thinking: Thinking | None = Field(None, description="The chat template's own way if absent.")
    output_config: OutputConfig | None = Field(
        None, description="The answer's format, and how long to think."
    )
    output_format: JsonOutput | None = Field(None, description="Older name of output_config.format.")
    cache_control: CacheControl | None = Field(None, description="Accepted; does nothing here.")
    speed: Literal["standard", "fast"] | None = Field(None, description="Accepted; there is one speed.")

    billing_policy: Any = Field(None, description="Accepted; nothing is billed here.")
    context_management: Annotated[Any, AfterValidator(_context_management)] = Field(
        None, description="Only no edits, or clear_thinking_20251015 that keeps all."
    )
    mcp_servers: unsupported([], **_RUN_THERE) = None  # type: ignore[valid-type]
    compaction: unsupported() = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def tools_for_the_choice(self) -> "ConversationFields":
        """Refuse a choice that the tools do not leave."""
        names = [tool.name for tool in self.tools]
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool") and not names:
            raise field_error("invalid_value", "is allowed only with tools; send some", "tool_choice")
        if isinstance(self.tool_choice, NamedChoice) and self.tool_choice.name not in names:
            phrase = f"is '{shortened(self.tool_choice.name)}', which is not among the tools"
            raise field_error("invalid_value", phrase, "tool_choice.name")
        return self

    @model_validator(mode="after")
    def one_format(self) -> "ConversationFields":
        """Refuse two formats: nobody could tell which one was meant."""
        if self.output_format is not None and self.output_config is not None and self.output_config.format:
            raise field_error(
                "invalid_value", "and output_config.format are both there; send one", "output_format"
            )
        return self

    @property
    def wanted_format(self) -> JsonOutput | None:
        """What the answer must be, under either name."""
        return self.output_format or (self.output_config.format if self.output_config else None)


def _stop_sequences(given: list[str]) -> list[str]:
    for index, stop in enumerate(given):
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            phrase = f"has {len(stop)} characters; a stop sequence has between 1 and {MAX_STOP_CHARACTERS}"
            raise field_error("invalid_value", phrase, f"[{index}]")
    return given


class MessagesRequest(ConversationFields):
    """The body of POST /v1/messages."""

    max_tokens: Count = Field(description="Longest answer; capped by the room left in the context.")
    temperature: float = Field(1.0, ge=0, le=1, description="0 takes the likeliest token.")
    top_p: float = Field(1.0, ge=0, le=1, description="Share of the likeliest tokens to draw from.")
    top_k: int = Field(0, ge=0, le=INT32_MAX, description="0 or the vocabulary's size and more: no limit.")
    stop_sequences: Annotated[
        list[str], Field(max_length=MAX_STOP_SEQUENCES), AfterValidator(_stop_sequences)
    ] = Field([], description="Strings that end the answer; stop_sequence in the answer says which one did.")
    stream: bool = Field(False, description="Whether the answer comes as events while it is made.")
    draft: DraftFields = Field(DraftFields(), description="How to draft; not Anthropic's.")
    metadata: Metadata | None = Field(None, description="Accepted; does nothing here.")
    service_tier: Literal["auto", "standard_only"] | None = Field(
        None, description="Accepted; there is one tier, standard."
    )
    inference_geo: str | None = Field(None, description="Accepted; inference is where the server is.")
    diagnostics: Diagnostics | None = Field(
        None, description="Answered with 'unavailable': why a prompt was not cached is not kept."
    )
    container: unsupported(**_RUN_THERE) = None  # type: ignore[valid-type]
    thread: Annotated[Any, AfterValidator(_thread)] = Field(
        None, description="Refused, in the way that makes the SDK send whole conversations instead."
    )
    fallbacks: unsupported([]) = None  # type: ignore[valid-type]
    fallback_credit_token: Any = Field(None, description="Accepted; nothing is billed here.")

    @model_validator(mode="after")
    def budget_below_the_limit(self) -> "MessagesRequest":
        """As Anthropic has it: thinking must leave room for an answer."""
        budget = self.thinking.budget_tokens if isinstance(self.thinking, ThinkingOn) else None
        if budget is not None and budget >= self.max_tokens:
            phrase = f"is {budget}, but must be below max_tokens, {self.max_tokens}"
            raise field_error("invalid_value", phrase, "thinking.budget_tokens")
        return self


class CountTokensRequest(ConversationFields):
    """The body of POST /v1/messages/count_tokens."""
