"""The bodies of /v1/messages and /v1/messages/count_tokens: every field, its type and its limits.

Fields of Anthropic's API that make no difference on a local server are accepted and ignored. Unsupported
fields that would change the response are refused by name.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator

from reprise.server.anthropic_api.conversation import read_conversation
from reprise.server.requests.chat import (
    CHOICE_NEEDS_TOOLS,
    ChatExtensions,
    Messages,
    ToolChoiceField,
    Tools,
    of_chats,
)
from reprise.server.requests.generation_fields import DraftFields, KeepAlive, WindowFields
from reprise.server.requests.messages import ToolChoice
from reprise.server.requests.structured_output import GUIDED, NO_WORDS, at_most_one
from reprise.server.validation.fields import (
    INT32_MAX,
    AcceptsPeerFields,
    Limit,
    RequestModel,
    Rules,
    Stops,
    Temperature,
    TopP,
    field_error,
    neutral,
    no_effect,
    notes_in,
    unsupported,
)


class Thinking(RequestModel):
    """Whether to think before responding, if the chat template has a choice."""

    type: str = Field(description="disabled: do not think; enabled, adaptive and any other: think.")
    budget_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None,
        description="Maximum tokens of the thinking: at this number it is ended. null, or not below "
        "max_tokens: no limit.",
    )
    display: Literal["summarized", "omitted"] = Field(
        "summarized",
        description="summarized: return all thinking; omitted: leave its text out of the response.",
    )

    @model_validator(mode="before")
    @classmethod
    def without_budget(cls, given: Any) -> Any:
        """Leave out the budget of what is disabled: clients send 0 there."""
        if not isinstance(given, dict) or given.get("type") != "disabled":
            return given
        return {name: value for name, value in given.items() if name != "budget_tokens"}

    @property
    def is_on(self) -> bool:
        """Whether to think."""
        return self.type != "disabled"


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


System = Annotated[
    tuple[Any, ...],
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]


_ONE_CONSTRAINT = at_most_one(
    {
        "output_config": {"anyOf": [{"type": "null"}, neutral("format")]},
        "output_format": {"type": "null"},
        **GUIDED,
        "bad_words": NO_WORDS,
    }
)


class ConversationFields(AcceptsPeerFields):
    """The fields that determine the prompt, common to both bodies."""

    droppable = frozenset({"draft", "diagnostics", "output_config.effort", "thinking.display"})
    takes_anything = ("system",)
    names: ClassVar[Mapping[str, str]] = {
        "response_format": "output_config.format",
        "response_format.json_schema": "output_config.format",
        "reasoning_effort": "output_config.effort",
    }
    rules: ClassVar[Rules] = (
        CHOICE_NEEDS_TOOLS,
        {
            "anyOf": [
                neutral("output_format"),
                {"properties": {"output_config": {"anyOf": [{"type": "null"}, neutral("format")]}}},
            ]
        },
    )

    model: str | None = Field(
        None, description="The model's name or one of its aliases. null: the served model."
    )
    messages: Messages = Field(
        description="The conversation. A last message of the assistant is the beginning of the response."
    )
    system: System = Field((), description="The system prompt, as a string or as text blocks.")
    tools: Tools = Field((), description="Custom tools; Anthropic's own are left out.")
    tool_choice: ToolChoiceField = Field(
        ToolChoice(),
        description="auto: the model decides; any: it must call a tool; tool: it must call this one; none: "
        "it must not. disable_parallel_tool_use: whether to allow at most one call.",
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

    @model_validator(mode="before")
    @classmethod
    def read_conversation(cls, given: Any, info: ValidationInfo) -> Any:
        """Bring the conversation into the normal form."""
        return read_conversation(given, notes_in(info.context)) if isinstance(given, dict) else given

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


def _allow_no_budget(schema: dict[str, Any]) -> None:
    """Say that a budget of 0 is taken: here a model does not think unless it is asked to."""
    schema["properties"]["thinking_budget_tokens"]["anyOf"].append({"const": 0})


class MessagesRequest(WindowFields, ChatExtensions, ConversationFields):
    """The body of POST /v1/messages."""

    model_config = ConfigDict(json_schema_extra=_allow_no_budget)
    rules: ClassVar[Rules] = (*ConversationFields.rules, _ONE_CONSTRAINT)

    max_tokens: Limit | None = Field(
        None, description="Maximum output tokens; the context may allow fewer. null: as many as it allows."
    )
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: of_chats("top_k") = 0  # type: ignore[valid-type]
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
