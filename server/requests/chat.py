"""The body of /v1/chat/completions: every field, its type and its limits."""

from typing import Any, Literal

from pydantic import Field, model_validator

from server.requests.chat_template import Messages, TemplateArguments
from server.requests.drafts import Prediction
from server.requests.generation_fields import GenerationFields
from server.requests.prompt_cache import PromptCacheOptions
from server.requests.tools import Tool, ToolChoice, ToolChoiceField, Tools, check_choice, check_enforced
from server.validation.field_errors import field_error
from server.validation.fields import Count, superseded, unsupported

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


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

    functions: superseded("is not supported; send tools instead", []) = None  # type: ignore[valid-type]
    function_call: superseded(  # type: ignore[valid-type]
        "is not supported; send tool_choice instead, with tools", "none", "auto"
    ) = None
    modalities: unsupported(["text"]) = None  # type: ignore[valid-type]
    audio: unsupported() = None  # type: ignore[valid-type]
    verbosity: unsupported("medium") = None  # type: ignore[valid-type]
    web_search_options: unsupported() = None  # type: ignore[valid-type]
    moderation: unsupported() = None  # type: ignore[valid-type]

    @property
    def requested_max_tokens(self) -> int | None:
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
            raise field_error("invalid_value", "is allowed only with logprobs: true", "top_logprobs")
        return self

    @model_validator(mode="after")
    def one_limit(self) -> "ChatRequest":
        """Refuse two limits that disagree: nobody could tell which one was meant."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise field_error(
                "invalid_value", "and max_completion_tokens disagree; send one of them", "max_tokens"
            )
        return self
