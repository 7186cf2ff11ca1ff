"""The bodies of /v1/chat/completions and /v1/completions: every field, its type and its limits.

A field that OpenAI defines and that cannot matter on a server of one's own is accepted and does
nothing; one that would change the answer, and is not there yet, is refused by name.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from server.cache_fields import PromptCacheOptions
from server.draft_fields import DraftFields, Prediction
from server.fields import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    Count,
    LogitBias,
    Metadata,
    Penalty,
    RequestModel,
    Stops,
    not_yet,
    replaced,
    wrong,
)
from server.messages import Message, check_conversation
from server.structured_fields import StructuredFields
from server.tool_fields import Tool, ToolChoice, ToolChoiceField, Tools, check_choice, check_enforced

MAX_MESSAGES = 4096
MAX_PROMPTS = 64
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
"""What the server decides when it renders a template."""


class StreamOptions(RequestModel):
    """What a stream holds besides the answer."""

    include_usage: bool = Field(False, description="Whether the stream ends with a chunk of token counts.")
    include_obfuscation: bool = Field(
        False, description="Accepted; nothing is padded here, the connection does not leave the machine."
    )


class GenerationFields(StructuredFields):
    """What chat and plain completions have in common.

    prompt_field: where the prompt stands, for errors about it.
    """

    prompt_field: ClassVar[str]

    model: str | None = Field(None, description="The model or one of its aliases; the served one if absent.")
    max_tokens: Count | None = Field(
        None, description="Longest answer; capped by the room left in the context."
    )
    temperature: float = Field(
        1.0, ge=0, le=2, description="0 takes the likeliest token each time; more is more random."
    )
    top_p: float = Field(
        1.0, ge=0, le=1, description="Draw from the likeliest tokens whose probabilities add up to this."
    )
    top_k: int = Field(
        0,
        ge=-1,
        le=INT32_MAX,
        description="Draw from so many of the likeliest tokens; 0, -1 or the vocabulary's size and more: no "
        "limit. Not OpenAI's.",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Draw from tokens that are at least this share as likely as the likeliest; not OpenAI's.",
    )
    seed: int | None = Field(
        None,
        ge=INT64_MIN,
        le=INT64_MAX,
        description="The same seed and request give the same answer; random if absent.",
    )
    stop: Stops = Field((), description="Strings that end the answer; they are not part of it.")
    stream: bool = Field(False, description="Whether the answer comes in chunks while it is made.")
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=INT32_MAX, description="Answers to each prompt.")
    presence_penalty: Penalty = Field(
        0.0, description="Taken from the logits of tokens that the answer has; below 0, added."
    )
    frequency_penalty: Penalty = Field(
        0.0, description="As presence_penalty, for each time that the answer has the token."
    )
    repetition_penalty: float = Field(
        1.0,
        ge=0.01,
        le=100,
        description="Above 1, makes tokens of prompt and answer less likely; 1 is off. Not OpenAI's.",
    )
    logit_bias: LogitBias = Field(
        (), description="From token ids, in digits, to what is added to their logits."
    )
    draft: DraftFields = Field(DraftFields(), description="How to draft; not OpenAI's.")
    user: str | None = Field(None, description="Accepted; does nothing here.")
    metadata: Metadata | None = Field(None, description="Accepted; does nothing here.")

    @model_validator(mode="after")
    def stream_options_need_a_stream(self) -> "GenerationFields":
        """Refuse options for a stream that was not asked for, as OpenAI does."""
        if self.stream_options is not None and not self.stream:
            raise wrong("invalid_value", "is allowed only with stream: true", "stream_options")
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """The longest answer that the request allows, if it says."""
        return self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens to tell at each place; None where no log probability is wanted."""
        return None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether to tell the prompt's as well."""
        return False

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


def _template_keys(given: dict[str, Any]) -> dict[str, Any]:
    for key in sorted(given.keys() & RESERVED_TEMPLATE_KEYS):
        raise wrong("invalid_value", "is the server's to set", f".{key}")
    return given


def _conversation(given: list[Message]) -> list[Message]:
    check_conversation(given)
    return given


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]
Messages = Annotated[
    list[Message], Field(min_length=1, max_length=MAX_MESSAGES), AfterValidator(_conversation)
]
TemplateArguments = Annotated[dict[str, Any], AfterValidator(_template_keys)]


class ChatRequest(GenerationFields):
    """The body of POST /v1/chat/completions."""

    prompt_field = "messages"

    messages: Messages = Field(description="The conversation to answer.")
    max_completion_tokens: Count | None = Field(None, description="Newer name of max_tokens.")
    prediction: Prediction | None = Field(
        None, description="The answer that is expected; what comes as predicted comes faster."
    )
    tools: Tools = Field((), description="Functions that the model may ask the client to call.")
    tool_choice: ToolChoiceField = Field(
        ToolChoice(),
        description="none: tools are not shown to the model; auto: it may call them; required: it must call "
        "at least one; an object with a function's name: it must call that one; allowed_tools: as auto or "
        "required, with some of the tools.",
    )
    parallel_tool_calls: bool = Field(
        True, description="false: the answer ends with the first call; matters only with tools."
    )
    reasoning_effort: ReasoningEffort | None = Field(
        None,
        description="Handed to the chat template, none also as enable_thinking: false; what a template does "
        "not know has no effect.",
    )
    logprobs: bool = Field(False, description="Whether to tell how likely each token of the content was.")
    top_logprobs: int = Field(
        0, ge=0, le=20, description="How many of the likeliest tokens to tell at each place, with logprobs."
    )
    chat_template_kwargs: TemplateArguments | None = Field(
        None, description="Handed to the chat template; goes before reasoning_effort."
    )

    store: bool | None = Field(None, description="Accepted; nothing is stored here.")
    service_tier: ServiceTier | None = Field(None, description="Accepted; there is one tier, default.")
    safety_identifier: str | None = Field(None, description="Accepted; does nothing here.")
    prompt_cache_key: str | None = Field(None, description="Accepted; prompts are cached by what they hold.")
    prompt_cache_retention: str | None = Field(None, description="Accepted; does nothing here.")
    prompt_cache_options: PromptCacheOptions | None = Field(
        None, description="Accepted; prompts are cached by what they hold."
    )

    functions: replaced("is not supported; send tools instead", []) = None  # type: ignore[valid-type]
    function_call: replaced(  # type: ignore[valid-type]
        "is not supported; send tool_choice instead, with tools", "none", "auto"
    ) = None
    modalities: not_yet(["text"]) = None  # type: ignore[valid-type]
    audio: not_yet() = None  # type: ignore[valid-type]
    verbosity: not_yet("medium") = None  # type: ignore[valid-type]
    web_search_options: not_yet() = None  # type: ignore[valid-type]
    moderation: not_yet() = None  # type: ignore[valid-type]

    @property
    def wanted_tokens(self) -> int | None:
        """See GenerationFields."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def shown_tools(self) -> list[Tool]:
        """The tools that the model sees and may call: all of them, or those that are allowed, or none."""
        choice = self.tool_choice
        if choice.mode == "none":
            return []
        # The grammar picks the one that must be called; the prompt, and what is cached of it, stays the same.
        if choice.names is None or choice.is_named:
            return list(self.tools)
        return [tool for tool in self.tools if tool.function.name in choice.names]

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that it may call."""
        names = self.tool_choice.names
        return [tool for tool in self.shown_tools if names is None or tool.function.name in names]

    @property
    def enforced_tools(self) -> list[Tool]:
        """Those whose arguments must follow their schemas: strict ones, and all where a call is required."""
        must_call = self.tool_choice.mode == "required"
        return [tool for tool in self.callable_tools if must_call or tool.function.strict]

    @property
    def template_arguments(self) -> dict[str, Any]:
        """What the chat template is told besides messages and tools."""
        effort: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            effort["reasoning_effort"] = self.reasoning_effort
        if self.reasoning_effort == "none":
            effort["enable_thinking"] = False
        return effort | (self.chat_template_kwargs or {})

    @model_validator(mode="after")
    def choice_fits_tools(self) -> "ChatRequest":
        """Refuse a choice among tools that are not there, and schemas that cannot be enforced."""
        check_choice(self.tools, self.tool_choice)
        check_enforced(self.tools, {tool.function.name for tool in self.enforced_tools})
        return self

    @property
    def num_top_logprobs(self) -> int | None:
        """See GenerationFields."""
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def top_logprobs_need_logprobs(self) -> "ChatRequest":
        """Refuse alternatives to tokens that are not told, as OpenAI does."""
        if self.top_logprobs and not self.logprobs:
            raise wrong("invalid_value", "is allowed only with logprobs: true", "top_logprobs")
        return self

    @model_validator(mode="after")
    def one_limit(self) -> "ChatRequest":
        """Refuse two limits that disagree: nobody could tell which one was meant."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise wrong("invalid_value", "and max_completion_tokens disagree; send one of them", "max_tokens")
        return self


Prompt = str | list[str] | list[int] | list[list[int]]


def _prompts(given: object) -> list[Any]:
    """The prompts of a request, one or several, each of them text or token ids."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise wrong("invalid_type", "must be a string, an array of strings, or an array of token ids")
    if not given:
        raise wrong("invalid_value", "is empty; send at least one token")
    if isinstance(given[0], int):
        _check_ids(given, "")
        return [given]
    if len(given) > MAX_PROMPTS:
        raise wrong("invalid_value", f"has {len(given)} entries; at most {MAX_PROMPTS} are allowed")
    for index, prompt in enumerate(given):
        at = f"[{index}]"
        if not isinstance(prompt, type(given[0])) or not isinstance(prompt, str | list):
            raise wrong("invalid_type", "must be a string like all others, or an array of token ids", at)
        if isinstance(prompt, list):
            _check_ids(prompt, at)
    return given


def _check_ids(ids: list[object], at: str) -> None:
    if not ids:
        raise wrong("invalid_value", "is empty; send at least one token", at)
    for index, token in enumerate(ids):
        if type(token) is not int:
            raise wrong("invalid_type", "must be a token id, a whole number", f"{at}[{index}]")


class CompletionRequest(GenerationFields):
    """The body of POST /v1/completions."""

    prompt_field = "prompt"

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts, json_schema_input_type=Prompt)] = (
        Field(description="What to continue: text or token ids, or several of either.")
    )
    best_of: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Only what n is: all answers are returned."
    )

    echo: bool = Field(False, description="Whether to say the prompt before the answer, with its logprobs.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="How many of the likeliest tokens to tell at each place, besides the token's own.",
    )
    suffix: not_yet("") = None  # type: ignore[valid-type]

    @property
    def num_top_logprobs(self) -> int | None:
        """See GenerationFields."""
        return self.logprobs

    @property
    def wants_prompt_logprobs(self) -> bool:
        """See GenerationFields."""
        return self.echo and self.logprobs is not None

    @model_validator(mode="after")
    def best_of_is_n(self) -> "CompletionRequest":
        """Refuse to generate answers that would be thrown away."""
        if self.best_of is not None and self.best_of != self.n:
            raise wrong("unsupported_parameter", "is supported only where it equals n", "best_of")
        return self
