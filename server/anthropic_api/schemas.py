"""The bodies of /v1/messages and its count_tokens, and their translation to chats."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator

from reprise.server.requests.chat import (
    CHOICE_NEEDS_TOOLS,
    ChatExtensions,
    ChatRequest,
    Messages,
    ToolChoiceField,
    Tools,
    extended,
    of_chats,
)
from reprise.server.requests.fields import (
    INT32_MAX,
    AcceptsPeerFields,
    Limit,
    Notes,
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
    validate,
)
from reprise.server.requests.generation_fields import (
    GUIDED,
    NO_WORDS,
    DraftFields,
    KeepAlive,
    WindowFields,
    at_most_one,
)
from reprise.server.requests.media import Media
from reprise.server.requests.messages import (
    Call,
    Json,
    Message,
    Part,
    Role,
    arguments_of,
    as_string,
    chat_message,
    check_answerable,
    check_message,
    check_size,
    decode_reasoning,
    joined,
    named,
    note_unknown,
    part_of,
    parts_of,
    settle,
)
from reprise.server.requests.tools import ToolChoice, ToolReader

_ROLES: tuple[Role, ...] = ("user", "assistant", "system")


def from_messages(messages: Iterable[Any], path: str, notes: Notes) -> list[Message]:
    """Translate the messages of a Messages request; merge neighbours of the same role, as Anthropic does.

    path: the path of the messages' array in the request.
    """
    made: list[Message] = []
    for index, given in enumerate(messages):
        at = f"{path}[{index}]"
        check_message(given, at)
        role = given.get("role") if isinstance(given, dict) else None
        if role not in _ROLES:
            notes.understood(f"{at}.role", "must be 'user', 'assistant' or 'system'")
            made.append(chat_message(given, at, notes))
            continue
        note_unknown(given, ("role", "content"), at, notes)
        if given.get("content") is None or (role != "assistant" and given["content"] == []):
            notes.understood(f"{at}.content", "is empty")
        made += _of_blocks(role, given.get("content"), f"{at}.content", notes)
    return merged(made)


def _of_blocks(role: Role, content: Any, at: str, notes: Notes) -> Iterator[Message]:
    """Split one message's blocks into messages; tool results become separate messages.

    An empty message stays. Without it the model would continue the answer before it.
    """
    parts: list[Part] = []
    reasoning: list[str] = []
    calls: list[Call] = []
    has_results = False
    joint = "" if role == "assistant" else "\n"

    def message() -> Message:
        return Message(role, tuple(parts), "".join(reasoning), tuple(calls), joint=joint, at=at)

    is_list = isinstance(content, list)
    for index, block in enumerate(content if is_list else [] if content is None else [content]):
        here = f"{at}[{index}]" if is_list else at
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use" and role == "assistant":
            note_unknown(block, ("type", "id", "name", "input"), here, notes)
            arguments = block["input"] if isinstance(block.get("input"), dict) else None
            if arguments is None:
                notes.understood(f"{here}.input", "must be an object")
                arguments = arguments_of(block.get("input"), f"{here}.input", notes)
            calls.append(Call(as_string(block.get("id")), named(block, here, notes), arguments))
        elif kind == "thinking" and role == "assistant":
            note_unknown(block, ("type", "thinking", "signature"), here, notes)
            reasoning.append(_thought(block, here, notes))
        elif kind == "tool_result":
            if parts or calls or reasoning:
                yield message()
                parts, reasoning, calls = [], [], []
            note_unknown(block, ("type", "tool_use_id", "content", "is_error"), here, notes)
            result = parts_of(block.get("content"), f"{here}.content", notes)
            shown = _as_error(result) if block.get("is_error") is True else result
            has_results = True
            yield Message(
                "tool", tuple(shown), call_id=as_string(block.get("tool_use_id")), joint="\n", at=here
            )
        elif isinstance(block, str) and not is_list:
            parts.append(block)
        else:
            parts += part_of(block, here, notes)
    if parts or calls or reasoning or role == "assistant" or not has_results:
        yield message()


def _thought(block: Json, at: str, notes: Notes) -> str:
    """Return a block's thinking: its text, or if that was omitted what our own signature carries."""
    text, signature = as_string(block.get("thinking")), block.get("signature")
    if text or not signature:
        return text
    if (decoded := decode_reasoning(signature)) is None:
        notes.left_out(f"{at}.signature", is_peers=True)
    return decoded or ""


def _as_error(parts: list[Part]) -> list[Part]:
    """Mark a result as an error, unless it says so itself."""
    text = "\n".join(map(str, parts))
    if any(isinstance(part, Media) for part in parts):
        return ["Error:", *parts]
    return parts if text.lower().startswith("error") else [f"Error: {text}".rstrip()]


def merged(messages: Iterable[Message]) -> list[Message]:
    """Merge neighbouring messages of the same role, except results of tool calls."""
    runs = groupby(messages, key=lambda message: message.role)
    return [one for role, run in runs for one in (run if role == "tool" else [joined(list(run))])]


SILENT = frozenset(("cache_control", "signature", "allowed_callers", "eager_input_streaming"))
"""Keys inside blocks and tools that Anthropic's API has and that need no mention."""
BILLING_LINE = "x-anthropic-billing-header:"
"""The beginning of a line that Claude Code puts at the head of the system prompt."""


def kept_system(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the system prompt without the billing line that Claude Code puts first.

    The line differs in every request, so with it no prompt would match the prefix cache.
    """
    if not parts or not str(parts[0]).startswith(BILLING_LINE):
        return tuple(parts)
    _, _, rest = str(parts[0]).partition("\n")
    return (*((rest.lstrip("\n"),) if rest.strip() else ()), *parts[1:])


class Thinking(RequestModel):
    """Whether to think before responding, if the chat template has a choice."""

    type: str = Field(description="disabled: do not think; enabled, adaptive and any other: think.")
    budget_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """Maximum tokens of the thinking: at this number it is ended. null, or not below max_tokens: no limit."""
    display: Literal["summarized", "omitted"] = "summarized"
    """summarized: return all thinking; omitted: return it in the signature only, in base64, which a client
    sends back."""

    @model_validator(mode="before")
    @classmethod
    def without_budget(cls, given: Any) -> Any:
        """Leave out the budget of what is disabled: clients send 0 there."""
        if not isinstance(given, dict) or given.get("type") != "disabled":
            return given
        return {name: value for name, value in given.items() if name != "budget_tokens"}


class JsonOutput(RequestModel):
    """JSON output that conforms to a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")
    """The JSON schema, with the same limits as response_format in chat completions."""


class OutputConfig(RequestModel):
    """Configuration of the output."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """How much to think, for chat templates that support it."""
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

    model: str | None = None
    """The model's name or one of its aliases. null: the served model."""
    messages: Messages
    """The conversation. A last message of the assistant is the beginning of the response."""
    system: System = Field((), description="The system prompt, as a string or as text blocks.")
    tools: Tools = Field((), description="Custom tools; Anthropic's own are left out.")
    tool_choice: ToolChoiceField = ToolChoice()
    """auto: the model decides; any: it must call a tool; tool: it must call this one; none: it must not.
    disable_parallel_tool_use: whether to allow at most one call."""
    thinking: Thinking | None = None
    """Whether to think before responding. By default not, if the template has a choice."""
    output_config: OutputConfig | None = None
    """The format of the output, and how much to think."""
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
        """Bring messages, system prompt, tools and tool_choice into the normal form.

        Raises BadRequestError if no prompt can be made of the conversation, or the model could not call a
        tool.
        """
        if not isinstance(given, dict):
            return given
        notes = notes_in(info.context)
        notes.silent, notes.api = SILENT, "messages"
        read = dict(given)
        tools = ToolReader(notes)
        if given.get("tools") is not None:
            tools.read(given["tools"], "tools")
        read["tools"] = tuple(tools.tools)
        read["tool_choice"] = tools.read_choice(given.get("tool_choice"))
        if isinstance(given.get("system"), list):
            check_size([{"content": given["system"]}], "system")
        read["system"] = tuple(parts_of(given.get("system"), "system", notes))
        if given.get("messages") is not None:
            messages = from_messages(check_size(given["messages"], "messages"), "messages", notes)
            read["messages"] = settle(messages, notes)
            check_answerable(read["messages"])
        return read

    @model_validator(mode="after")
    def check_format(self) -> "ConversationFields":
        """Refuse a request with two output formats."""
        if self.output_format is not None and self.output_config is not None and self.output_config.format:
            raise field_error(
                "invalid_value", "and output_config.format are both set; send only one", "output_format"
            )
        return self


def _allow_no_budget(schema: dict[str, Any]) -> None:
    """Say that a budget of 0 is taken: here a model does not think unless it is asked to."""
    schema["properties"]["thinking_budget_tokens"]["anyOf"].append({"const": 0})


class MessagesRequest(WindowFields, ChatExtensions, ConversationFields):  # type: ignore[misc]
    """The body of POST /v1/messages."""

    model_config = ConfigDict(json_schema_extra=_allow_no_budget)
    rules: ClassVar[Rules] = (*ConversationFields.rules, _ONE_CONSTRAINT)

    max_tokens: Limit | None = None
    """Maximum output tokens; the context may allow fewer. null: as many as it allows."""
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: of_chats("top_k") = 0  # type: ignore[valid-type]
    stop_sequences: Stops = ()
    """Strings that end the output; stop_sequence in the response names the one that did."""
    stream: bool = Field(False, description="Whether to stream the message as events while it is generated.")
    draft: DraftFields = DraftFields()
    """How to draft for this request. Not in Anthropic's API."""
    keep_alive: KeepAlive = None
    metadata: no_effect("has no effect.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is one tier, standard.") = None  # type: ignore[valid-type]
    inference_geo: no_effect("inference runs on this server.") = None  # type: ignore[valid-type]
    diagnostics: Diagnostics | None = None
    """The response says 'unavailable': the server does not know why a prompt was not cached."""
    container: unsupported(**_REMOTE) = None  # type: ignore[valid-type]
    thread: Annotated[Any, AfterValidator(_thread)] = None
    """Refused, with an error code that makes the SDK send whole conversations instead."""
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


def to_chat_request(body: ConversationFields, notes: Notes) -> ChatRequest:
    """Translate a body to a chat request. That of a body to count tokens has only what makes the prompt.

    notes: records fields of chats that are left out or understood in another form.
    Raises BadRequestError, which has the chat request's names of fields.
    """
    system = kept_system(body.system)
    shown = Message("system", system, joint="\n", at="system")
    is_thinking = body.thinking is not None and body.thinking.type != "disabled"
    chat: Json = {
        "model": body.model,
        "messages": (*((shown,) if shown.text else ()), *body.messages),
        "tools": body.tools,
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": body.tool_choice.is_parallel,
        "continue_final_message": body.messages[-1].can_continue,
        "chat_template_kwargs": {"enable_thinking": is_thinking},
    }
    if is_thinking and body.thinking is not None:
        chat["thinking_budget_tokens"] = body.thinking.budget_tokens
    if body.output_config is not None and (effort := body.output_config.effort):
        chat["reasoning_effort"] = effort
    if output_format := body.output_format or (body.output_config.format if body.output_config else None):
        schema = {"name": "output", "strict": True, "schema": output_format.json_schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    if isinstance(body, MessagesRequest):
        sampling = body.model_fields_set & {"temperature", "top_p", "top_k"}
        names = ("max_tokens", "stream", "draft", *WindowFields.model_fields, *sampling)
        chat |= {name: getattr(body, name) for name in names} | {"stop": list(body.stop_sequences)}
        more = extended(body)
        if isinstance(own := more["chat_template_kwargs"], dict):
            more["chat_template_kwargs"] = chat["chat_template_kwargs"] | own
        chat |= {name: value for name, value in more.items() if value is not None}
    request = validate(chat, ChatRequest, notes)
    if system != body.system:
        notes.left_out(f"system.{BILLING_LINE.removesuffix(':')}", is_peers=True)
    return request
