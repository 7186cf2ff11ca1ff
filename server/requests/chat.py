"""The body of /v1/chat/completions, into which all other chat APIs are translated."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    InstanceOf,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from reprise.config.model_settings import RESERVED_TEMPLATE_KEYS
from reprise.engine.interface.request import PromptEnd
from reprise.server.requests.fields import (
    AcceptsPeerFields,
    Count,
    Limit,
    Notes,
    RequestModel,
    Rules,
    TopLogprobs,
    field_error,
    neutral,
    no_effect,
    notes_in,
    read_by,
    unsupported,
)
from reprise.server.requests.generation_fields import GenerationFields, Prediction
from reprise.server.requests.messages import Json, Message, check_answerable, check_size, from_chats, settle
from reprise.server.requests.peer_fields import as_switch
from reprise.server.requests.tools import MAX_TOOLS, Tool, ToolChoice, ToolReader, check_enforced

SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Template arguments with which thinking is switched on and off."""


def _template_keys(given: dict[str, Any]) -> dict[str, Any]:
    for key in sorted(given.keys() & RESERVED_TEMPLATE_KEYS):
        raise field_error("invalid_value", "is reserved: the server sets it. Leave it out", f".{key}")
    # To a template any text is true, "false" too.
    return {key: as_switch(value) if key in SWITCHES else value for key, value in given.items()}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _choices(*modes: str) -> list[dict[str, Any]]:
    return [{"enum": list(modes)}, _object("type", type={"enum": list(modes)})]


_NULL: dict[str, Any] = {"type": "null"}
_NAME = _object("name", name={"type": "string"})
_NAMED = [
    _object("name", name={"type": "string"}, type=_NULL),
    _object("function", type=_NULL, function=_NAME),
    *(
        _object("type", key, **{"type": {"const": kind}, key: schema})
        for kind in ("function", "custom", "tool")
        for key, schema in (("name", {"type": "string"}), ("function", _NAME))
    ),
]
_ALLOWED = _object(
    *("type", "tools"),
    type={"const": "allowed_tools"},
    mode={"enum": ["auto", "required"]},
    tools={"type": "array", "items": _NAME, "minItems": 1, "maxItems": MAX_TOOLS},
)
TOOLS_SCHEMA = {"type": "array", "items": {"type": "object", "additionalProperties": True}}
TOOL_CHOICE_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "object"}]}
_ENDS = ("continue_final_message", "add_generation_prompt")
ONE_END = {"anyOf": [neutral(name, values=(None, False)) for name in _ENDS]}
"""A rule of all bodies of chats: a prompt ends in the last message, or opens the answer."""
_SOME = {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object"}]}
_ANY_CHOICE = {"anyOf": [_NULL, *_choices("none", "auto", "any", "required"), *_NAMED, _ALLOWED]}
_FREE_CHOICE = {"anyOf": [_NULL, *_choices("none", "auto")]}
CHOICE_NEEDS_TOOLS = {
    "anyOf": [
        {"required": ["tools"], "properties": {"tools": _SOME, "tool_choice": _ANY_CHOICE}},
        {"properties": {"tool_choice": _FREE_CHOICE}},
    ]
}
"""A rule of all bodies with tools, as JSON schema."""
_ROLE = {"required": ["role"], "properties": {"role": {"type": "string"}}}
_CONTENT = {"required": ["content"], "properties": {"content": {"not": _NULL}}}
_MESSAGE = {
    "type": "object",
    "allOf": [{"properties": {"role": {"type": ["string", "null"]}}}, {"anyOf": [_ROLE, _CONTENT]}],
    "additionalProperties": True,
}
_TEXT = {"type": "string", "description": "The text of a message of the user."}
MESSAGES_SCHEMA: dict[str, Any] = {"type": "array", "items": {"anyOf": [_TEXT, _MESSAGE]}}
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


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(GenerationFields):
    """The body of POST /v1/chat/completions."""

    prompt_field = "messages"
    rules: ClassVar[Rules] = (CHOICE_NEEDS_TOOLS, ONE_END)

    messages: Messages
    """The conversation so far; the answer is its next message."""
    max_completion_tokens: Limit | None = None
    """Maximum number of tokens to generate, reasoning included. OpenAI's newer name for max_tokens; if both
    are sent, they must be equal."""
    prediction: Prediction | None = None
    """Text that the answer is expected to contain. It is used as a draft: what matches is generated faster,
    and the answer stays the same."""
    tools: Tools = ()
    """Functions and free-form tools that the model may ask the client to call."""
    tool_choice: ToolChoiceField = ToolChoice()
    """auto (the default): the model may call tools. none: the model is not shown the tools. required: it must
    call at least one. An object with a tool's name: it must call that tool. allowed_tools: like auto or
    required, but only with the listed tools."""
    parallel_tool_calls: bool = True
    """Whether an answer may contain several tool calls. If false, the answer ends after the first call."""
    reasoning_effort: ReasoningEffort | None = None
    """Passed to the chat template as reasoning_effort; none also sets enable_thinking to false. It has no
    effect if the model's template does not use these arguments."""
    thinking_budget_tokens: Count | None = None
    """Maximum tokens of the reasoning: at this number its end marker is forced. It has no effect if the
    model's format of reasoning is unknown. Not in OpenAI's API."""
    include_reasoning: bool = True
    """Whether the response has the model's reasoning. Not in OpenAI's API."""
    logprobs: bool = False
    """Whether to return the log probability of each token of the content."""
    top_logprobs: TopLogprobs = 0
    """Number of most likely tokens to return at each position. Requires logprobs: true."""
    chat_template_kwargs: TemplateArguments | None = None
    """Extra arguments for the chat template. They override those set by reasoning_effort, and those of the
    server's --chat-template-kwargs. Not in OpenAI's API."""

    continue_final_message: bool = False
    """Whether the answer continues the last message, which must be the assistant's, instead of beginning a
    new one. The response has only what follows. Not in OpenAI's API."""
    add_generation_prompt: bool | None = None
    """Whether the chat template opens the answer. null: unless it continues the last message. Not in OpenAI's
    API."""

    truncation: Literal["auto", "disabled"] | None = None
    """What to do if the conversation is too long for the context. auto: leave out its oldest turns, and say
    so in x-reprise-ignored. Otherwise it gets a 400. Not in OpenAI's API."""
    store: no_effect("chat completions are never stored.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is only one tier, default.") = None  # type: ignore[valid-type]
    safety_identifier: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_key: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    prompt_cache_retention: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_options: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]

    functions: Any = None
    """Deprecated; understood as tools."""
    function_call: Any = None
    """Deprecated; understood as tool_choice."""
    modalities: unsupported(["text"]) = None  # type: ignore[valid-type]
    audio: unsupported() = None  # type: ignore[valid-type]
    moderation: unsupported() = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def read_conversation(cls, given: Any, info: ValidationInfo) -> Any:
        """Normalize the conversation."""
        if not isinstance(given, dict):
            return given
        budget = given.get("thinking_budget_tokens")
        if type(budget) is int and not budget and _is_thinking_off(given):
            given = {name: value for name, value in given.items() if name != "thinking_budget_tokens"}
        return read_chat(given, notes_in(info.context))

    @property
    def prompt_end(self) -> PromptEnd:
        """Where the prompt ends: after the messages, within the last one, or at the start of an answer."""
        if self.continue_final_message:
            return "final_message"
        return "messages" if self.add_generation_prompt is False else "answer"

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
        """Return the request with other schemas for some tools, by their names."""
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

    @property
    def num_top_logprobs(self) -> int | None:
        """The number of alternatives to return at each position; None without logprobs."""
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def check_combinations(self) -> "ChatRequest":
        """Refuse contradictory fields, and schemas that must be enforced but cannot be."""
        if self.continue_final_message and self.add_generation_prompt:
            phrase = "cannot be combined with continue_final_message: true; leave it out"
            raise field_error("invalid_value", phrase, "add_generation_prompt")
        if self.continue_final_message and not self.messages[-1].can_continue:
            phrase = "needs a last message of the assistant that ends with text and has no tool calls"
            raise field_error("invalid_value", phrase, "continue_final_message")
        check_enforced(self.enforced_tools)
        if self.top_logprobs and not self.logprobs:
            phrase = "is allowed only with logprobs: true"
            raise field_error("invalid_value", phrase, "top_logprobs", leaves_out=True)
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            # The smaller one holds.
            larger = "max_tokens" if self.max_tokens == max(limits) else "max_completion_tokens"
            phrase = "is larger than the other of max_tokens and max_completion_tokens; send one of them"
            raise field_error("invalid_value", phrase, larger, leaves_out=True)
        return self


def read_chat(given: Json, notes: Notes) -> Json:
    """Return a chat request's fields, with messages, tools and tool_choice normalized.

    Raises BadRequestError if the conversation gives no prompt, or the model could not call a tool.
    """
    notes.silent, notes.api = frozenset(("prompt_cache_breakpoint", "annotations")), "chats"
    read = dict(given)
    tools = ToolReader(notes)
    for name in ("tools", "functions"):
        if isinstance(given.get(name), tuple):
            tools.tools += given[name]
        elif given.get(name) is not None:
            tools.read(given[name], name)
    if given.get("functions") is not None:
        notes.understood("functions", "is not supported; send tools instead")
        del read["functions"]
    if given.get("function_call") is not None:
        notes.understood("function_call", "is not supported; send tool_choice instead, with tools")
        read["tool_choice"] = read.pop("function_call")
    read["tools"] = tuple(tools.tools)
    read["tool_choice"] = tools.read_choice(read.get("tool_choice"))
    messages = given.get("messages")
    if messages is not None and not isinstance(messages, tuple):
        messages = settle(from_chats(check_size(messages, "messages"), "messages", notes), notes)
        check_answerable(messages)
        read["messages"] = messages
    return read


def _is_thinking_off(given: Mapping[str, Any]) -> bool:
    arguments = given.get("chat_template_kwargs")
    switches = [as_switch(arguments.get(name)) for name in SWITCHES] if isinstance(arguments, dict) else []
    return given.get("reasoning_effort") == "none" or any(switch is False for switch in switches)


def _of_chats(name: str) -> tuple[FieldInfo, str]:
    field = ChatRequest.model_fields[name]
    return field, ChatRequest.description_of(name).removesuffix(" Not in OpenAI's API.")


def of_chats(name: str) -> Any:
    """Return the type of the chat request's field of this name, for use in other request models."""
    field, description = _of_chats(name)
    return Annotated[field.annotation, *field.metadata, Field(description=description)]


_OF_CHATS = object()


def extension(name: str) -> Any:
    """Return the type of a chat field that another API lacks. The chat request validates it."""
    field, description = _of_chats(name)
    unchecked = read_by(lambda given: given, Annotated[field.annotation, Field(), *field.metadata])
    description = f"{description} As in chat completions; not in this API elsewhere."
    described = Field(description=description, json_schema_extra=field.json_schema_extra)
    return Annotated[Any, unchecked, described, _OF_CHATS]


_EXTENSIONS = """
    seed min_p presence_penalty frequency_penalty repetition_penalty logit_bias stop_token_ids min_tokens
    loop_guard_tokens ignore_eos allowed_token_ids include_stop_str_in_output thinking_budget_tokens
    guided_json guided_regex guided_choice guided_grammar bad_words chat_template_kwargs
"""
_EXTENSION_FIELDS: dict[str, Any] = {name: (extension(name), None) for name in _EXTENSIONS.split()}
ChatExtensions: Any = create_model("ChatExtensions", __base__=AcceptsPeerFields, **_EXTENSION_FIELDS)
"""The fields of chats that neither OpenAI's Responses nor Anthropic's Messages have."""


def extended(body: RequestModel) -> dict[str, Any]:
    """Return the body's fields that the chat request receives unchanged and validates."""
    fields = type(body).model_fields.items()
    return {name: getattr(body, name) for name, field in fields if _OF_CHATS in field.metadata}
