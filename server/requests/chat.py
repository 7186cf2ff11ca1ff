"""The body of /v1/chat/completions, which every other API of chats is translated into."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from reprise.engine.interface.request import PromptEnd
from reprise.server.requests.generation_fields import GenerationFields, Prediction
from reprise.server.requests.messages import Message, Tool, ToolChoice
from reprise.server.requests.openai_messages import read_chat
from reprise.server.requests.tools import MAX_TOOLS, check_enforced
from reprise.server.validation.fields import (
    AcceptsPeerFields,
    Count,
    Limit,
    RequestModel,
    Rules,
    field_error,
    neutral,
    no_effect,
    notes_in,
    unsupported,
)
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
        "anyOf": [
            {"type": "string", "description": "The text of a message of the user."},
            {
                "type": "object",
                "allOf": [
                    {"properties": {"role": {"type": ["string", "null"]}}},
                    {
                        "anyOf": [
                            {"required": ["role"], "properties": {"role": {"type": "string"}}},
                            {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}},
                        ]
                    },
                ],
                "additionalProperties": True,
            },
        ]
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


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(GenerationFields):
    """The body of POST /v1/chat/completions."""

    prompt_field = "messages"
    rules: ClassVar[Rules] = (CHOICE_NEEDS_TOOLS, ONE_END)

    messages: Messages = Field(description="The conversation so far; the answer is its next message.")
    max_completion_tokens: Limit | None = Field(
        None,
        description="Maximum number of tokens to generate, reasoning included. OpenAI's newer name for "
        "max_tokens; if both are sent, they must be equal.",
    )
    prediction: Prediction | None = Field(
        None,
        description="Text that the answer is expected to contain. It is used as a draft: what matches is "
        "generated faster, and the answer stays the same.",
    )
    tools: Tools = Field(
        (), description="Functions and free-form tools that the model may ask the client to call."
    )
    tool_choice: ToolChoiceField = Field(
        ToolChoice(),
        description="auto (the default): the model may call tools. none: the model is not shown the tools. "
        "required: it must call at least one. An object with a tool's name: it must call that tool. "
        "allowed_tools: like auto or required, but only with the listed tools.",
    )
    parallel_tool_calls: bool = Field(
        True,
        description="Whether an answer may contain several tool calls. If false, the answer ends after the "
        "first call.",
    )
    reasoning_effort: ReasoningEffort | None = Field(
        None,
        description="Passed to the chat template as reasoning_effort; none also sets enable_thinking to "
        "false. It has no effect if the model's template does not use these arguments.",
    )
    thinking_budget_tokens: Count | None = Field(
        None,
        description="Maximum tokens of the reasoning: at this number its end marker is forced. It has no "
        "effect if the model's format of reasoning is unknown. Not in OpenAI's API.",
    )
    include_reasoning: bool = Field(
        True, description="Whether the response has the model's reasoning. Not in OpenAI's API."
    )
    logprobs: bool = Field(
        False, description="Whether to return the log probability of each token of the content."
    )
    top_logprobs: int = Field(
        0,
        ge=0,
        le=20,
        description="Number of most likely tokens to return at each position. Requires logprobs: true.",
    )
    chat_template_kwargs: TemplateArguments | None = Field(
        None,
        description="Extra arguments for the chat template. They override those set by reasoning_effort. "
        "Not in OpenAI's API.",
    )

    continue_final_message: bool = Field(
        False,
        description="Whether the answer continues the last message, which must be the assistant's, instead "
        "of beginning a new one. The response has only what follows. Not in OpenAI's API.",
    )
    add_generation_prompt: bool | None = Field(
        None,
        description="Whether the chat template opens the answer. null: unless it continues the last message. "
        "Not in OpenAI's API.",
    )

    truncation: Literal["auto", "disabled"] | None = Field(
        None,
        description="What to do if the conversation is too long for the context. auto: leave out its oldest "
        "turns, and say so in x-reprise-ignored. Otherwise it gets a 400. Not in OpenAI's API.",
    )
    store: no_effect("chat completions are never stored.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is only one tier, default.") = None  # type: ignore[valid-type]
    safety_identifier: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_key: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    prompt_cache_retention: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_options: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]

    functions: Any = Field(None, description="Deprecated; understood as tools.")
    function_call: Any = Field(None, description="Deprecated; understood as tool_choice.")
    modalities: unsupported(["text"]) = None  # type: ignore[valid-type]
    audio: unsupported() = None  # type: ignore[valid-type]
    moderation: unsupported() = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def read_conversation(cls, given: Any, info: ValidationInfo) -> Any:
        """Bring the conversation into the normal form."""
        if not isinstance(given, dict):
            return given
        budget = given.get("thinking_budget_tokens")
        if type(budget) is int and not budget and _is_thinking_off(given):
            given = {name: value for name, value in given.items() if name != "thinking_budget_tokens"}
        return read_chat(given, notes_in(info.context))

    @property
    def prompt_end(self) -> PromptEnd:
        """Where the prompt ends: after the messages, within the last one, or at the start of an answer."""
        return prompt_end(self.continue_final_message, self.add_generation_prompt)

    @property
    def requested_max_tokens(self) -> int | None:
        """The requested limit on the answer's tokens, under either name; None if there is none."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def shows_reasoning(self) -> bool:
        """Whether the response has the model's reasoning."""
        return self.include_reasoning

    @property
    def shown_tools(self) -> list[Tool]:
        """The tools that the model is shown: all of them, the allowed ones, or none."""
        choice = self.tool_choice
        if choice.mode == "none":
            return []
        # A named tool is enforced by the grammar alone, so the prompt and its cached prefix stay the same.
        if choice.names is None or choice.is_named:
            return list(self.tools)
        return [tool for tool in self.tools if tool.name in choice.names]

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        names = self.tool_choice.names
        return [tool for tool in self.shown_tools if names is None or tool.name in names]

    @property
    def enforced_tools(self) -> list[Tool]:
        """The tools whose schemas are enforced: strict ones, or all callable ones if a call is required."""
        must_call = self.tool_choice.mode == "required"
        return [tool for tool in self.callable_tools if must_call or tool.strict]

    def with_parameters(self, parameters: Mapping[str, dict[str, Any]]) -> "ChatRequest":
        """Return the request with other schemas for some tools. parameters: the schemas, by tool name."""
        tools = [replace(one, parameters=parameters.get(one.name, one.parameters)) for one in self.tools]
        return self.model_copy(update={"tools": tuple(tools)})

    @property
    def template_arguments(self) -> dict[str, Any]:
        """The arguments of the chat template besides messages and tools."""
        effort: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            effort["reasoning_effort"] = self.reasoning_effort
        if self.reasoning_effort == "none":
            effort["enable_thinking"] = False
        return effort | (self.chat_template_kwargs or {})

    @model_validator(mode="after")
    def check_continued(self) -> "ChatRequest":
        """Refuse to continue a message that is no text of the assistant."""
        check_continued(self.messages, self.continue_final_message, self.add_generation_prompt)
        return self

    @model_validator(mode="after")
    def check_enforced_tools(self) -> "ChatRequest":
        """Refuse schemas that must be enforced and cannot be."""
        check_enforced(self.enforced_tools)
        return self

    @property
    def num_top_logprobs(self) -> int | None:
        """The number of alternatives to return at each position; None without logprobs."""
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def check_top_logprobs(self) -> "ChatRequest":
        """Refuse top_logprobs without logprobs, as OpenAI does."""
        if self.top_logprobs and not self.logprobs:
            phrase = "is allowed only with logprobs: true"
            raise field_error("invalid_value", phrase, "top_logprobs", leaves_out=True)
        return self

    @model_validator(mode="after")
    def check_token_limits(self) -> "ChatRequest":
        """Refuse max_tokens and max_completion_tokens that differ; the smaller would hold."""
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            larger = "max_tokens" if self.max_tokens == max(limits) else "max_completion_tokens"
            phrase = "is larger than the other of max_tokens and max_completion_tokens; send one of them"
            raise field_error("invalid_value", phrase, larger, leaves_out=True)
        return self


def _is_thinking_off(given: Mapping[str, Any]) -> bool:
    """Return whether a request that has not been validated switches thinking off."""
    arguments = given.get("chat_template_kwargs")
    switches = [as_switch(arguments.get(name)) for name in SWITCHES] if isinstance(arguments, dict) else []
    return given.get("reasoning_effort") == "none" or any(switch is False for switch in switches)


def of_chats(name: str) -> Any:
    """Return the type of the chat request's field of this name, for use in other request models."""
    field = ChatRequest.model_fields[name]
    parts = (field.annotation, *field.metadata, Field(description=_without_note(field.description)))
    return Annotated.__class_getitem__(parts)  # type: ignore[attr-defined]


def _without_note(description: str | None) -> str:
    return str(description).removesuffix(" Not in OpenAI's API.")


_OF_CHATS = object()


def extension(name: str) -> Any:
    """Return the type of a chat field that the API of another body does not have.

    It is validated later, as part of the chat request. name: of the field of ChatRequest.
    """
    field = ChatRequest.model_fields[name]
    parts = (field.annotation, Field(), *field.metadata)
    documented = Annotated.__class_getitem__(parts)  # type: ignore[attr-defined]
    unchecked = BeforeValidator(lambda given: given, json_schema_input_type=documented)
    description = f"{_without_note(field.description)} As in chat completions; not in this API elsewhere."
    described = Field(description=description, json_schema_extra=field.json_schema_extra)
    return Annotated[Any, unchecked, described, _OF_CHATS]


class ChatExtensions(AcceptsPeerFields):
    """The fields of chats that neither OpenAI's Responses nor Anthropic's Messages have."""

    seed: extension("seed") = None  # type: ignore[valid-type]
    min_p: extension("min_p") = None  # type: ignore[valid-type]
    presence_penalty: extension("presence_penalty") = None  # type: ignore[valid-type]
    frequency_penalty: extension("frequency_penalty") = None  # type: ignore[valid-type]
    repetition_penalty: extension("repetition_penalty") = None  # type: ignore[valid-type]
    logit_bias: extension("logit_bias") = None  # type: ignore[valid-type]
    stop_token_ids: extension("stop_token_ids") = None  # type: ignore[valid-type]
    min_tokens: extension("min_tokens") = None  # type: ignore[valid-type]
    loop_guard_tokens: extension("loop_guard_tokens") = None  # type: ignore[valid-type]
    ignore_eos: extension("ignore_eos") = None  # type: ignore[valid-type]
    allowed_token_ids: extension("allowed_token_ids") = None  # type: ignore[valid-type]
    include_stop_str_in_output: extension("include_stop_str_in_output") = None  # type: ignore[valid-type]
    thinking_budget_tokens: extension("thinking_budget_tokens") = None  # type: ignore[valid-type]
    guided_json: extension("guided_json") = None  # type: ignore[valid-type]
    guided_regex: extension("guided_regex") = None  # type: ignore[valid-type]
    guided_choice: extension("guided_choice") = None  # type: ignore[valid-type]
    guided_grammar: extension("guided_grammar") = None  # type: ignore[valid-type]
    bad_words: extension("bad_words") = None  # type: ignore[valid-type]
    chat_template_kwargs: extension("chat_template_kwargs") = None  # type: ignore[valid-type]


def extended(body: RequestModel) -> dict[str, Any]:
    """Return the body's fields that are passed to the chat request unchanged and validated there."""
    fields = type(body).model_fields.items()
    return {name: getattr(body, name) for name, field in fields if _OF_CHATS in field.metadata}
