"""The body of POST /v1/responses: every field, its type and its limits."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from server.errors import shortened
from server.requests.chat import ChatRequest
from server.requests.prompt_cache import PromptCacheOptions
from server.responses_api.items import AnyItem, InputItem
from server.responses_api.tools import ToolChoice, Tools
from server.validation.field_errors import field_error
from server.validation.fields import Count, Metadata, RequestModel, unsupported
from server.validation.unions import tagged_union

MAX_TOP_LOGPROBS = 20
MAX_ITEMS = 8192
"""Items of one input, and parts of all of them: each takes time before anything else can be found wrong."""
INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_REASONING = "reasoning.encrypted_content"


def _of_chat(name: str, note: str = "") -> Any:
    """The type of a field that chat completions have as well, and that they check.

    note: what there is to say besides what they say.
    """
    known = ChatRequest.model_fields[name]
    parts = (known.annotation, Field(), *known.metadata)
    shown = Annotated.__class_getitem__(parts)  # type: ignore[attr-defined]
    unchecked = BeforeValidator(lambda given: given, json_schema_input_type=shown)
    return Annotated[Any, unchecked, Field(description=f"{known.description}{note}")]


def _extra(name: str) -> Any:
    is_told = "not openai's" in (ChatRequest.model_fields[name].description or "").lower()
    return _of_chat(name, "" if is_told else " Not OpenAI's here.")


class PlainFormat(RequestModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(RequestModel):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    name: str = Field(description="1 to 64 letters, digits, underscores and dashes; not shown to the model.")
    json_schema: dict[str, Any] = Field(alias="schema", description="A JSON schema, as in chat completions.")
    description: str | None = Field(None, description="Accepted; not shown to the model.")
    strict: bool | None = Field(None, description="Accepted; every schema is enforced.")


_FORMATS = {"text": PlainFormat, "json_object": JsonObjectFormat, "json_schema": JsonSchemaFormat}
AnyFormat = PlainFormat | JsonObjectFormat | JsonSchemaFormat
TextFormat = Annotated[AnyFormat, PlainValidator(tagged_union(_FORMATS), json_schema_input_type=AnyFormat)]


class TextConfig(RequestModel):
    """What the text of the answer must be."""

    format: TextFormat = Field(
        PlainFormat(type="text"),
        description="text; json_object: any JSON object; json_schema: what keeps to it.",
    )
    verbosity: unsupported("medium") = None  # type: ignore[valid-type]


_NO_SUMMARIES = unsupported(
    "auto",
    phrase="must be 'auto' or absent: nothing is summarised here, all reasoning is told as it is",
    description="Accepted if it is auto; reasoning is told whole, never summarised.",
)


class Reasoning(RequestModel):
    """How to think."""

    effort: _of_chat("reasoning_effort") = None  # type: ignore[valid-type]
    summary: _NO_SUMMARIES = None  # type: ignore[valid-type]
    generate_summary: _NO_SUMMARIES = None  # type: ignore[valid-type]
    context: unsupported("auto") = None  # type: ignore[valid-type]
    mode: unsupported("standard") = None  # type: ignore[valid-type]


class StreamOptions(RequestModel):
    """How to stream."""

    include_obfuscation: bool = Field(
        False, description="Accepted; nothing is padded here, the connection does not leave the machine."
    )


class CacheOptions(PromptCacheOptions):
    """How prompts are cached."""

    comparison_response_id: unsupported() = None  # type: ignore[valid-type]
    prewarm: unsupported(False) = None  # type: ignore[valid-type]


def _input(given: object) -> object:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be a string or an array of items")
    num_parts = sum(_count_parts(item) for item in given) if len(given) <= MAX_ITEMS else 0
    for num, what in ((len(given), "items"), (num_parts, "parts in its items")):
        if num > MAX_ITEMS:
            raise field_error("invalid_value", f"has {num} {what}; at most {MAX_ITEMS} are allowed")
    return given


def _count_parts(item: object) -> int:
    lists = [item.get(name) for name in ("content", "output", "summary")] if isinstance(item, dict) else []
    return sum(len(parts) for parts in lists if isinstance(parts, list))


def _include(given: list[str]) -> list[str]:
    for index, name in enumerate(given):
        if name not in (INCLUDE_LOGPROBS, INCLUDE_REASONING):
            raise field_error(
                "unsupported_value",
                f"is '{shortened(name)}', which this server does not have; "
                f"it has {INCLUDE_LOGPROBS} and {INCLUDE_REASONING}",
                f"[{index}]",
            )
    return given


Input = Annotated[list[InputItem], BeforeValidator(_input, json_schema_input_type=str | list[AnyItem])]


class ResponsesRequest(RequestModel):
    """The body of POST /v1/responses. What it shares with chat completions is checked there."""

    model: str | None = Field(None, description="The model or one of its aliases; the served one if absent.")
    input: Input = Field([], description="What to answer; not needed after an earlier response.")
    instructions: str | None = Field(
        None, description="A system message before all else; not carried over to the next response."
    )
    previous_response_id: str | None = Field(
        None, description="A response that is kept here, which this one continues."
    )
    store: bool = Field(
        True, description="Whether to keep the response, in memory and for a while, to continue it."
    )
    stream: bool = Field(False, description="Whether to send the response as events, while it is made.")
    stream_options: StreamOptions | None = Field(None, description="How to stream; only with stream.")
    max_output_tokens: Count | None = Field(
        None, description="Longest answer, reasoning included; capped by the room left in the context."
    )
    temperature: float = Field(1.0, ge=0, le=2, description="0 takes the likeliest token always.")
    top_p: float = Field(1.0, ge=0, le=1, description="Share of the probability that tokens are drawn from.")
    tools: Tools = Field([], description="Functions that the model may call. There are no built-in tools.")
    tool_choice: ToolChoice = Field("auto", description="As in chat completions, with the names inside.")
    parallel_tool_calls: bool = Field(True, description="false: the answer ends with the first call.")
    text: TextConfig = Field(
        default_factory=lambda: TextConfig.model_validate({}), description="What the text must be."
    )
    reasoning: Reasoning = Field(
        default_factory=lambda: Reasoning.model_validate({}), description="How to think."
    )
    include: Annotated[list[str], AfterValidator(_include)] = Field(
        [],
        description=f"{INCLUDE_LOGPROBS}: log probabilities. {INCLUDE_REASONING}: the reasoning in base64, not "
        "encrypted, so that clients that send back only that lose nothing.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Likeliest tokens at each place; more than 0 asks for them.",
    )
    metadata: Metadata = Field({}, description="Given back.")

    max_tool_calls: Count | None = Field(
        None, description="Accepted; it limits built-in tools, and there are none."
    )
    user: str | None = Field(None, description="Accepted; given back.")
    safety_identifier: str | None = Field(None, description="Accepted; given back.")
    prompt_cache_key: str | None = Field(None, description="Accepted; prompts are cached by what they hold.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(
        None, description="Accepted; does nothing here."
    )
    prompt_cache_options: CacheOptions | None = Field(
        None, description="Accepted; prompts are cached by what they hold."
    )
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = Field(
        None, description="Accepted; there is one tier, default."
    )

    seed: _extra("seed") = None  # type: ignore[valid-type]
    stop: _extra("stop") = None  # type: ignore[valid-type]
    top_k: _extra("top_k") = None  # type: ignore[valid-type]
    min_p: _extra("min_p") = None  # type: ignore[valid-type]
    presence_penalty: _extra("presence_penalty") = None  # type: ignore[valid-type]
    frequency_penalty: _extra("frequency_penalty") = None  # type: ignore[valid-type]
    repetition_penalty: _extra("repetition_penalty") = None  # type: ignore[valid-type]
    logit_bias: _extra("logit_bias") = None  # type: ignore[valid-type]
    draft: _extra("draft") = None  # type: ignore[valid-type]
    guided_json: _extra("guided_json") = None  # type: ignore[valid-type]
    guided_regex: _extra("guided_regex") = None  # type: ignore[valid-type]
    guided_choice: _extra("guided_choice") = None  # type: ignore[valid-type]
    guided_grammar: _extra("guided_grammar") = None  # type: ignore[valid-type]
    chat_template_kwargs: _extra("chat_template_kwargs") = None  # type: ignore[valid-type]

    truncation: unsupported(  # type: ignore[valid-type]
        "disabled",
        phrase="must be 'disabled': nothing is dropped from a conversation unasked; send a shorter input",
        description="Only disabled: an input that is too long is a 400.",
    ) = None
    background: unsupported(  # type: ignore[valid-type]
        False,
        phrase="is not supported; wait for the response, or stream it",
        description="Not supported: a response is generated while the client waits.",
    ) = None
    conversation: unsupported(  # type: ignore[valid-type]
        phrase="is not supported; send previous_response_id, or the whole conversation as input",
        description="Not supported: see previous_response_id.",
    ) = None
    prompt: unsupported(  # type: ignore[valid-type]
        phrase="is not supported: no templates are kept here; send instructions and input",
        description="Not supported: no templates are kept here.",
    ) = None
    context_management: unsupported([]) = None  # type: ignore[valid-type]
    moderation: unsupported() = None  # type: ignore[valid-type]
    access_programs: unsupported() = None  # type: ignore[valid-type]
    image: unsupported() = None  # type: ignore[valid-type]
    personality: unsupported() = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def fits_together(self) -> "ResponsesRequest":
        """Refuse options for a stream that was not asked for, and a request about nothing."""
        if self.stream_options is not None and not self.stream:
            raise field_error("invalid_value", "is allowed only with stream: true", "stream_options")
        if self.previous_response_id is None and not self.input:
            raise field_error("missing_required_parameter", "is missing or empty; say something", "input")
        return self

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities were asked for."""
        return INCLUDE_LOGPROBS in self.include or bool(self.top_logprobs)

    @property
    def includes_reasoning(self) -> bool:
        """Whether reasoning items are to have encrypted_content."""
        return INCLUDE_REASONING in self.include
