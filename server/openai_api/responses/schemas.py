"""The bodies and queries of OpenAI's Responses API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import to_json

from reprise.server.requests.chat import (
    CHOICE_NEEDS_TOOLS,
    TOOL_CHOICE_SCHEMA,
    TOOLS_SCHEMA,
    ChatExtensions,
    ChatRequest,
    ReasoningEffort,
    extension,
)
from reprise.server.requests.fields import (
    AcceptsPeerFields,
    Count,
    RequestModel,
    Rules,
    Temperature,
    TopLogprobs,
    TopP,
    field_error,
    no_effect,
    notes_in,
    tagged_union,
    unsupported,
    validate,
)
from reprise.server.requests.generation_fields import (
    ANY_TEXT,
    GUIDED,
    NO_WORDS,
    JsonObjectFormat,
    KeepAlive,
    at_most_one,
)
from reprise.server.requests.generation_fields import TextFormat as PlainText
from reprise.server.requests.messages import check_size

MAX_LISTED = 100
MAX_POSITION = 999_999_999
"""Maximum number of an event that a client can name: more digits would only cost time."""

_INCLUDE = no_effect("a stored response has what its own request included.")


def _number(least: int, most: int) -> Any:
    """Return the type of a number from least to most that is written in digits."""
    bounds = Field(ge=least, le=most)

    def read(given: object) -> object:
        is_number = isinstance(given, str) and given.isascii() and given.isdigit()
        if not is_number or len(str(given)) > len(str(most)):
            raise field_error("invalid_type", f"must be a number from {least} to {most}")
        return int(str(given))

    return Annotated[int, BeforeValidator(read, Annotated[int, bounds]), bounds]


class GetQuery(RequestModel):
    """Query of GET /v1/responses/{response_id}."""

    include: _INCLUDE = None  # type: ignore[valid-type]
    include_obfuscation: Literal["true", "false"] | None = None
    """Accepted; there are no events to pad."""
    stream: Literal["true", "false"] | None = None
    """true: as a stream. Texts come whole, so its events are fewer than at first."""
    starting_after: _number(0, MAX_POSITION) = Field(  # type: ignore[valid-type]
        None, description="With stream: the number of the last event to leave out."
    )


class ListQuery(RequestModel):
    """Query of GET /v1/responses/{response_id}/input_items."""

    limit: _number(0, MAX_LISTED) = Field(  # type: ignore[valid-type]
        20, description="Maximum number of items to list."
    )
    order: Literal["asc", "desc"] = "desc"
    """asc: oldest item first; desc: newest first."""
    after: str | None = None
    """The id of the previous page's last item."""
    include: _INCLUDE = None  # type: ignore[valid-type]


def page(ids: Sequence[str], items: Sequence[bytes], query: ListQuery) -> bytes:
    """Return a page of items as an OpenAI list, as JSON. It is empty if query.after is not among the items.

    ids, items: each item's id, and its JSON.
    """
    ordered = list(zip(ids, items, strict=True))
    if query.order == "desc":
        ordered.reverse()
    if query.after is not None:
        at = next((index for index, (item_id, _) in enumerate(ordered) if item_id == query.after), None)
        ordered = [] if at is None else ordered[at + 1 :]
    listed = ordered[: query.limit]
    rest = {
        "first_id": listed[0][0] if listed else "",
        "last_id": listed[-1][0] if listed else "",
        "has_more": len(listed) < len(ordered),
    }
    return b'{"object":"list","data":[%b],%b' % (b",".join(item for _, item in listed), to_json(rest)[1:])


MAX_ITEMS = 8192
"""Maximum items of an input, and maximum parts in all items: validating each takes time."""
INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_REASONING = "reasoning.encrypted_content"


class JsonSchemaFormat(RequestModel):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    name: str | None = None
    """At most 64 letters, digits, underscores and dashes; not shown to the model."""
    json_schema: dict[str, Any] = Field(alias="schema", description="A JSON schema, as in chat completions.")
    description: str | None = None
    """Accepted; not shown to the model."""
    strict: bool | None = None
    """Whether all of it must be enforced; see chat completions."""


_FORMATS = {"text": PlainText, "json_object": JsonObjectFormat, "json_schema": JsonSchemaFormat}
AnyFormat = PlainText | JsonObjectFormat | JsonSchemaFormat
TextFormat = Annotated[AnyFormat, PlainValidator(tagged_union(_FORMATS), json_schema_input_type=AnyFormat)]


class TextConfig(RequestModel):
    """Configuration of the output text."""

    format: TextFormat = PlainText(type="text")
    """text: any text; json_object: any JSON object; json_schema: JSON that follows a schema."""


class Reasoning(RequestModel):
    """Configuration of the reasoning."""

    effort: ReasoningEffort | None = Field(None, description=ChatRequest.description_of("reasoning_effort"))
    summary: no_effect("reasoning is returned in full.") = None  # type: ignore[valid-type]
    generate_summary: no_effect("reasoning is returned in full.") = None  # type: ignore[valid-type]
    context: unsupported("auto") = None  # type: ignore[valid-type]
    mode: unsupported("standard") = None  # type: ignore[valid-type]


class ResponseStreamOptions(RequestModel):
    """Options for a stream."""

    include_obfuscation: no_effect("events are not padded.") = None  # type: ignore[valid-type]


def _input(given: object) -> list[Any]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list | dict):
        raise field_error("invalid_type", "must be a string or an array of items")
    return check_size(given, "input", most=MAX_ITEMS, what="items")


def _conversation(given: object) -> list[Any]:
    items = given
    if isinstance(given, dict) and "items" in given:
        items = [given["items"]] if isinstance(given["items"], dict) else given["items"]
    items = [] if items in (None, {}, "") else items
    if not isinstance(items, list):
        phrase = "is not supported; send previous_response_id, or the whole conversation as input"
        raise field_error("unsupported_parameter", phrase)
    return check_size(items, "conversation", most=MAX_ITEMS, what="items")


def _include(given: list[str], info: ValidationInfo) -> list[str]:
    for index, name in enumerate(given):
        if name not in (INCLUDE_LOGPROBS, INCLUDE_REASONING):
            notes_in(info.context).left_out(f"include[{index}]")
    return given


_ITEMS: dict[str, Any] = {"type": "array", "items": {}, "maxItems": MAX_ITEMS}
_HOLDS_ITEMS = {"type": "object", "required": ["items"]}
_ANY_TEXT = {"anyOf": [{"type": "null"}, {"properties": {"format": ANY_TEXT}}]}
_ONE_CONSTRAINT = at_most_one({"text": _ANY_TEXT, **GUIDED, "bad_words": NO_WORDS})
_CONVERSATION_RULE = {
    "properties": {
        "conversation": {"properties": {"items": {"anyOf": [_ITEMS, {"type": "object"}, {"type": "null"}]}}}
    }
}
Input = Annotated[
    list[Any],
    PlainValidator(_input),
    WithJsonSchema({"anyOf": [{"type": "string"}, {**_ITEMS, "items": {"type": "object"}}]}),
]
Conversation = Annotated[
    list[Any],
    PlainValidator(_conversation),
    WithJsonSchema({"anyOf": [_ITEMS, _HOLDS_ITEMS, {"type": "object", "maxProperties": 0}, {"const": ""}]}),
]


class ResponsesFields(AcceptsPeerFields):
    """The fields of a Responses request, apart from those that chats have beside them."""

    rules: ClassVar[Rules] = (CHOICE_NEEDS_TOOLS, _CONVERSATION_RULE, _ONE_CONSTRAINT)
    names: ClassVar[Mapping[str, str]] = {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
        "response_format.json_schema": "text.format",
        "reasoning_effort": "reasoning.effort",
        "logprobs": "include",
    }
    droppable = frozenset(
        {"draft", "reasoning.effort", "stream_options", "text.format.name", "text.verbosity", "truncation"}
        | {"top_logprobs"}
    )

    model: str | None = None
    """The model's name or one of its aliases. null: the served model."""
    input: Input = Field([])
    """A string, or items. Without any conversation, an empty message."""
    instructions: str | None = None
    """A system message at the start; not carried over to the next response."""
    previous_response_id: str | None = None
    """The id of a stored response to continue."""
    store: bool = True
    """Whether to store the response so that it can be continued: in memory, until evicted."""
    stream: bool = False
    """Whether to stream the response as events while it is generated."""
    stream_options: ResponseStreamOptions | None = None
    """Options for a stream; only with stream."""
    max_output_tokens: Count | None = None
    """Maximum output tokens, reasoning included; the context may allow fewer."""
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    tools: Annotated[Any, WithJsonSchema(TOOLS_SCHEMA)] = Field([])
    """Functions that the model may call. There are no built-in tools. Those that items of the input bring
    (additional_tools, tool_search_output) come behind them. All stand where the chat template shows tools,
    mostly at the head: models were trained to find them there alone. So the request that first brings one
    finds the conversation before it uncached, later ones find it."""
    tool_choice: Annotated[Any, WithJsonSchema(TOOL_CHOICE_SCHEMA)] = "auto"
    """As in chat completions, but a function's name is not nested in an object."""
    parallel_tool_calls: bool = True
    """false: the response ends after the first function call."""
    text: TextConfig = Field(default_factory=lambda: TextConfig.model_validate({}))
    reasoning: Reasoning = Field(default_factory=lambda: Reasoning.model_validate({}))
    include: Annotated[list[str], AfterValidator(_include)] = Field(
        [],
        description=f"{INCLUDE_LOGPROBS}: log probabilities. {INCLUDE_REASONING}: the reasoning in base64 "
        "(not encrypted), for clients that send back only this field.",
    )
    top_logprobs: TopLogprobs | None = None
    """Number of most likely tokens to return at each position. Above 0 turns on logprobs."""
    metadata: Any = Field({})
    """Returned unchanged in the response."""

    max_tool_calls: no_effect(  # type: ignore[valid-type]
        "it limits built-in tools, and there are none."
    ) = None
    user: no_effect("returned unchanged in the response.") = None  # type: ignore[valid-type]
    safety_identifier: no_effect("returned unchanged in the response.") = None  # type: ignore[valid-type]
    prompt_cache_key: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    prompt_cache_retention: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_options: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is one tier, default.") = None  # type: ignore[valid-type]

    stop: extension("stop") = None  # type: ignore[valid-type]
    top_k: extension("top_k") = None  # type: ignore[valid-type]
    draft: extension("draft") = None  # type: ignore[valid-type]
    wedlm_decoding: extension("wedlm_decoding") = None  # type: ignore[valid-type]
    wedlm_window_size: extension("wedlm_window_size") = None  # type: ignore[valid-type]
    wedlm_entropy_threshold: extension("wedlm_entropy_threshold") = None  # type: ignore[valid-type]
    wedlm_pos_penalty_factor: extension("wedlm_pos_penalty_factor") = None  # type: ignore[valid-type]
    wedlm_anchor: extension("wedlm_anchor") = None  # type: ignore[valid-type]

    keep_alive: KeepAlive = None
    truncation: Literal["auto", "disabled"] | None = None
    """What to do if the input is too long for the context. auto: leave out the oldest turns, and say so in
    x-reprise-ignored. Otherwise it gets a 400."""
    background: unsupported(  # type: ignore[valid-type]
        False,
        phrase="is not supported; wait for the response, or stream it",
        description="Left out: a response is generated while the client waits.",
    ) = None
    conversation: Conversation = Field([])
    """Items that come before those of the input and are counted with them in errors, alone or as items of an
    object; not in OpenAI's API. An id of a stored conversation is refused."""
    prompt: unsupported(  # type: ignore[valid-type]
        phrase="is not supported: no prompt templates are stored here; send instructions and input",
        description="Not supported: no prompt templates are stored here.",
        is_needed=True,
    ) = None
    context_management: unsupported([]) = None  # type: ignore[valid-type]
    moderation: unsupported() = None  # type: ignore[valid-type]
    access_programs: unsupported() = None  # type: ignore[valid-type]
    image: unsupported() = None  # type: ignore[valid-type]
    personality: unsupported() = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def take_messages(cls, given: Any, info: ValidationInfo) -> Any:
        """Take the field messages, as chats have it, as the input of a request without one."""
        if not isinstance(given, dict) or given.get("input") or not given.get("messages"):
            return given
        if notes_in(info.context).refuses:
            return given
        notes_in(info.context).understood("messages", "is named 'input' here")
        others = {name: value for name, value in given.items() if name != "messages"}
        return {**others, "input": given["messages"]}

    @model_validator(mode="after")
    def check_combination(self) -> "ResponsesFields":
        """Refuse stream_options without stream."""
        if self.stream_options is not None and not self.stream:
            phrase = "is allowed only with stream: true"
            raise field_error("invalid_value", phrase, "stream_options", leaves_out=True)
        return self

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities are requested."""
        return INCLUDE_LOGPROBS in self.include or bool(self.top_logprobs)


class ResponsesRequest(ChatExtensions, ResponsesFields):  # type: ignore[misc]
    """The body of POST /v1/responses. Fields shared with chats are validated as part of the chat request."""


SHARE_OF_CONTEXT = 8
"""A summary takes at most one part in so many of the context."""
ASKED = (
    "Summarise this conversation for an assistant that will continue it and sees nothing of it but the "
    "user's messages and your summary. Say what the user wants, what was done and found out, which names, "
    "files and values matter, what was decided and why, and what is still to be done. Do not continue the "
    "conversation: write the summary alone."
)


class CompactRequest(AcceptsPeerFields):
    """The body of POST /v1/responses/compact."""

    names = ResponsesRequest.names

    model: str | None = Field(None, description="As in POST /v1/responses.")
    input: Input = Field([], description="A string, or items. Optional with previous_response_id.")
    instructions: str | None = Field(None, description="A system message at the start, as in the session.")
    previous_response_id: str | None = Field(None, description="The id of a stored response to begin with.")
    prompt_cache_key: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    prompt_cache_retention: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_options: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is one tier, default.") = None  # type: ignore[valid-type]
    image: unsupported() = None  # type: ignore[valid-type]

    def asked(self, context_tokens: int, loop_guard_tokens: int) -> ResponsesRequest:
        """Return the request whose answer is the summary: the conversation, then the demand to summarise."""
        given = {
            **self.model_dump(include={"model", "instructions", "previous_response_id"}),
            "input": [{"role": "user", "content": ASKED}],
            "max_output_tokens": max(1, context_tokens // SHARE_OF_CONTEXT),
            # The limit is not the client's, so it does not turn the guard off.
            "loop_guard_tokens": loop_guard_tokens,
            # A thought would take the room of the summary.
            "reasoning": {"effort": "none"},
            "store": False,
        }
        asked = validate(given, ResponsesRequest)
        # Not validated with these: the demand makes one item more than a client may send.
        return asked.model_copy(update={"input": [*self.input, *asked.input]})
