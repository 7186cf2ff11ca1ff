"""The bodies of Ollama's API, and their translation to chats and completions."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, InstanceOf, ValidationInfo, WithJsonSchema, model_validator

from reprise.server.requests.chat import MESSAGES_SCHEMA, ChatRequest, ReasoningEffort, Tools, of_chats
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.embeddings import Inputs, Text, read_inputs
from reprise.server.requests.fields import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    MAX_FIELDS,
    Notes,
    RequestModel,
    Rules,
    TopLogprobs,
    field_error,
    neutral,
    no_effect,
    notes_in,
    unsupported,
    validate,
)
from reprise.server.requests.generation_fields import DraftFields, KeepAlive
from reprise.server.requests.media import image
from reprise.server.requests.messages import (
    MAX_PARTS,
    Json,
    Message,
    Part,
    check_answerable,
    check_size,
    from_chats,
    settle,
)
from reprise.server.requests.peer_fields import IGNORED
from reprise.server.requests.tools import ToolReader

SILENT = frozenset(("index", "type"))
"""Keys inside calls and tools that Ollama's API has and that need no mention."""
_OWN = frozenset(("images", "thinking", "tool_name"))


def read_messages(given: Any, notes: Notes) -> tuple[Message, ...]:
    """Convert the JSON messages of an Ollama chat to the normal form. Raises BadRequestError."""
    notes.silent, notes.api = SILENT, "ollama"
    calls = _Calls()
    messages = check_size(given, "messages")
    check_size([{"content": one.get("images")} for one in messages if isinstance(one, dict)], "messages")
    chat = [_as_chat(one, calls) if isinstance(one, dict) else one for one in messages]
    made = from_chats(chat, "messages", notes)
    for index, one in enumerate(messages):
        if isinstance(one, dict) and one.get("images"):
            shown = images_of(one["images"], f"{made[index].at}.images")
            made[index] = replace(made[index], parts=(*shown, *made[index].parts))
    settled = settle(made, notes)
    check_answerable(settled)
    return settled


def images_of(given: Any, path: str) -> list[Part]:
    """Return the images in the `images` field of a message. path: the field's path in the request."""
    return [image(one, path) for one in (given if isinstance(given, list) else [given])]


class _Calls:
    """The calls not answered yet. Ollama's calls need no ids, so they get some."""

    def __init__(self) -> None:
        self._num = 0
        self._unanswered: dict[str, None] = {}
        self._by_name: dict[str, deque[str]] = {}

    def with_id(self, call: Any) -> Any:
        """Return a call with an id; anything else as it is."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        self._num += 1
        given = call.get("id")
        call_id = given if isinstance(given, str) and given else f"call_{self._num}"
        self._unanswered[call_id] = None
        if isinstance(name := function.get("name"), str):
            self._by_name.setdefault(name, deque()).append(call_id)
        return {**call, "id": call_id}

    def answer(self, name: str | None) -> str | None:
        """Return the id of the first call of the tool, or of any; None if all are answered."""
        waiting: Iterable[str] = self._unanswered if name is None else self._by_name.get(name, ())
        call_id = next((one for one in waiting if one in self._unanswered), None)
        if call_id is not None:
            del self._unanswered[call_id]
        while name in self._by_name and (ids := self._by_name[name]) and ids[0] not in self._unanswered:
            ids.popleft()
        return call_id


def _as_chat(given: Json, calls: _Calls) -> Json:
    """Convert a message to the chat format: with call ids, without its images."""
    chat = {key: value for key, value in given.items() if key not in _OWN}
    if isinstance(role := given.get("role"), str):
        chat["role"] = role.lower()
    if given.get("thinking"):
        chat["reasoning_content"] = given["thinking"]
    if isinstance(given.get("tool_calls"), list):
        chat["tool_calls"] = [calls.with_id(call) for call in given["tool_calls"]]
    if chat.get("role") == "tool" and not given.get("tool_call_id"):
        names = (given.get("tool_name"), chat.pop("name", None))
        chat["tool_call_id"] = calls.answer(
            next((one for one in names if isinstance(one, str) and one), None)
        )
    return chat


Factor = Annotated[float, Field(ge=0.01, le=100)]


def _factor(given: object) -> object:
    """Return 1 for 0, which is no factor of anything."""
    return 1 if given == 0 and not isinstance(given, bool) else given


class Options(RequestModel):
    """Sampling options of a request. Options about how Ollama runs a model are left out."""

    temperature: float | None = Field(default=None, ge=0, le=INT32_MAX)
    """Sampling temperature. 0: always the most likely token. Higher is more random."""
    top_p: of_chats("top_p") = None  # type: ignore[valid-type]
    top_k: of_chats("top_k") = None  # type: ignore[valid-type]
    min_p: of_chats("min_p") = None  # type: ignore[valid-type]
    seed: int | None = Field(default=None, ge=INT64_MIN, le=INT64_MAX)
    """The same seed and request give the same answer. null or -1: a random seed."""
    num_predict: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    """Maximum tokens to generate. 0 or less: as many as the context allows."""
    stop: of_chats("stop") = None  # type: ignore[valid-type]
    repeat_penalty: (
        Annotated[Factor, BeforeValidator(_factor, json_schema_input_type=Factor | Literal[0])] | None
    ) = Field(
        default=None,
        description="Above 1 makes tokens of the prompt and the answer less likely, below 1 more likely. 0 "
        "or 1: no effect.",
    )
    presence_penalty: of_chats("presence_penalty") = None  # type: ignore[valid-type]
    frequency_penalty: of_chats("frequency_penalty") = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def leave_out(cls, given: Any, info: ValidationInfo) -> Any:
        """Leave out, and name, options that have no meaning here, such as num_ctx."""
        if not isinstance(given, dict) or len(given) > MAX_FIELDS:
            return given
        useless = (given.keys() & IGNORED) - cls.field_names()
        for name in sorted(useless):
            notes_in(info.context).left_out(f"options.{name}", is_peers=True)
        return {name: value for name, value in given.items() if name not in useless}


def _format(given: object) -> object:
    if given not in ("", "json") and not isinstance(given, dict):
        raise field_error("invalid_value", "must be 'json' or a JSON schema, which is an object")
    return given


def _think(given: object) -> object:
    if not isinstance(given, bool) and given not in get_args(ReasoningEffort):
        raise field_error("invalid_type", "must be a boolean or a level such as 'low'")
    return given


Format = Annotated[Any, BeforeValidator(_format, json_schema_input_type=Literal["", "json"] | dict[str, Any])]
EmptyArray = Annotated[list[Any], Field(max_length=0)]
Think = Annotated[Any, BeforeValidator(_think, json_schema_input_type=bool | ReasoningEffort)]
Images = Annotated[
    list[Any],
    Field(max_length=MAX_PARTS),
    # One alone stands for an array of it.
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {}, "maxItems": MAX_PARTS},
                {"type": "string"},
                {"type": "number"},
                {"type": "boolean"},
            ]
        }
    ),
]


class GeneratingFields(RequestModel):
    """The fields that determine how a response is generated, common to both bodies."""

    droppable = frozenset({"draft"})
    names: ClassVar[Mapping[str, str]] = {
        "guided_json": "format",
        "response_format": "format",
        "max_tokens": "options.num_predict",
        "repetition_penalty": "options.repeat_penalty",
        "reasoning_effort": "think",
    }

    model: str | None = None
    """The model's name or one of its aliases, with or without :latest. null: the served one."""
    options: Options = Options()
    """How to sample. What is absent is as the model recommends."""
    format: Format = ""
    """Format of the response: 'json', or the JSON schema that it satisfies."""
    think: Think = None
    """Whether to think before responding, or how much, if the chat template has a choice."""
    stream: bool = Field(True, description="Whether to send the response in lines while it is generated.")
    truncate: bool = True
    """What to do if the conversation is too long for the context. true: leave out its oldest turns, and say
    so in x-reprise-ignored. false: a 400."""
    logprobs: bool = Field(False, description="Whether to return the log probability of each token.")
    top_logprobs: TopLogprobs = 0
    """Number of most likely tokens to return at each position; with logprobs."""
    keep_alive: KeepAlive = None
    draft: DraftFields = DraftFields()
    """How to draft for this request. Not in Ollama's API."""
    shift: no_effect("the context is never shifted: an answer ends at its end.") = None  # type: ignore[valid-type]


class OllamaChatRequest(GeneratingFields):
    """The body of POST /api/chat."""

    messages: Annotated[tuple[InstanceOf[Message], ...], WithJsonSchema(MESSAGES_SCHEMA)] = ()
    """The conversation so far. Its last message, if the assistant's, is the beginning of the response. Images
    are shown as a placeholder. Empty: load the model, or unload it if keep_alive is 0."""
    tools: Tools = Field((), description="Functions that the model may ask the client to call.")

    @model_validator(mode="before")
    @classmethod
    def read_conversation(cls, given: Any, info: ValidationInfo) -> Any:
        """Bring the conversation into the normal form.

        Raises BadRequestError if no prompt can be made of it, or the model could not call a tool.
        """
        if not isinstance(given, dict):
            return given
        notes = notes_in(info.context)
        read = dict(given)
        if given.get("messages") is not None:
            read["messages"] = read_messages(given["messages"], notes)
        tools = ToolReader(notes)
        if given.get("tools") is not None:
            tools.read(given["tools"], "tools")
        return read | {"tools": tuple(tools.tools)}


class OllamaGenerateRequest(GeneratingFields):
    """The body of POST /api/generate."""

    rules: ClassVar[Rules] = (
        {
            "anyOf": [
                neutral("system", values=(None, "")),
                {"properties": {"raw": {"enum": [None, False]}, "suffix": {"enum": [None, ""]}}},
            ]
        },
    )

    prompt: str = ""
    """What the user says. Empty without a suffix: load the model, or unload it if keep_alive is 0."""
    suffix: str = ""
    """The text after the response, if the model has tokens to fill in what is between."""
    system: str = Field("", description="The system prompt.")
    raw: bool = False
    """Whether the prompt is the whole text to continue, without a chat template."""
    images: Images = Field([], description="Images, shown as a placeholder.")
    template: unsupported(  # type: ignore[valid-type]
        "",
        phrase="is not supported: the model's chat template is used; send raw: true with the whole prompt",
        is_needed=True,
    ) = None
    context: unsupported(  # type: ignore[valid-type]
        [],
        phrase="is not supported: no response here has one; send the conversation to /api/chat",
        is_needed=True,
    ) = None

    @property
    def is_plain(self) -> bool:
        """Whether the prompt is text to continue or to fill in, and not what a user says."""
        return self.raw or bool(self.suffix)

    @model_validator(mode="after")
    def check_plain(self) -> "OllamaGenerateRequest":
        """Refuse a system prompt where no chat template is used: with raw, or a text to fill in."""
        if self.is_plain and self.system:
            other = "raw: true" if self.raw else "suffix"
            raise field_error(
                "invalid_value", f"cannot be combined with {other}; put it in the prompt", "system"
            )
        return self


class _NamesModel(RequestModel):
    """Base of bodies whose model may be under its older name."""

    name: str | None = Field(None, description="Older name of model.")

    @model_validator(mode="before")
    @classmethod
    def take_older_name(cls, given: Any) -> Any:
        """Take the model from the older name if that is the only one."""
        if isinstance(given, dict) and given.get("model") is None and given.get("name") is not None:
            return {**given, "model": given["name"]}
        return given


class OllamaModelRequest(_NamesModel):
    """The body of POST /api/show."""

    model: str | None = Field(None, description="The model's name. null: the served one.")
    verbose: no_effect("there is one length of description.") = None  # type: ignore[valid-type]


class OllamaPullRequest(_NamesModel):
    """The body of POST /api/pull."""

    model: str = Field(description="The model's name on the hub, such as mlx-community/Qwen3-8B-4bit.")
    stream: bool = Field(True, description="Whether to tell the progress, or only the end.")
    insecure: no_effect("the hub is reached as the server is configured.") = None  # type: ignore[valid-type]


class _EmbeddingFields(_NamesModel):
    """The fields of both requests for embeddings."""

    model: str | None = Field(None, description="The model's name. null: --embedding-model.")
    keep_alive: KeepAlive = None
    options: no_effect("none of them changes a vector.") = None  # type: ignore[valid-type]


def _texts(given: object) -> tuple[Text, ...]:
    return () if given in ("", []) else read_inputs(given)


class OllamaEmbedRequest(_EmbeddingFields):
    """The body of POST /api/embed."""

    input: Annotated[
        tuple[Text, ...], BeforeValidator(_texts, json_schema_input_type=Inputs | Literal[""] | EmptyArray)
    ] = Field(description="A text, or an array of texts. Empty: load the model.")
    truncate: bool = Field(True, description="Cut texts that are too long. false: a 400.")
    dimensions: int | None = Field(None, ge=1, le=INT32_MAX)
    """Keep this many leading numbers, and normalize again."""


class OllamaEmbeddingsRequest(_EmbeddingFields):
    """The body of POST /api/embeddings, which is older."""

    prompt: str = Field(description="A text. Empty: load the model.")


RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)
_RENAMED = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}


def to_chat(body: GeneratingFields, messages: tuple[Message, ...], **more: Any) -> ChatRequest:
    """Return the chat request. more: fields of chats. Raises BadRequestError."""
    if isinstance(body.think, bool):
        more["chat_template_kwargs"] = {"enable_thinking": body.think}
    elif body.think:
        more["reasoning_effort"] = body.think
    if body.logprobs:
        more |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    more |= {
        "messages": messages,
        "truncation": "auto" if body.truncate else "disabled",
        "continue_final_message": messages[-1].can_continue,
    }
    return _validated(body, more, ChatRequest)


def prompt_to_chat(body: OllamaGenerateRequest) -> ChatRequest:
    """Return a chat request with the prompt as the user's message. Raises BadRequestError."""
    images = images_of(body.images, "images") if body.images else []
    system = [Message("system", (body.system,), at="system")] if body.system else []
    return to_chat(body, (*system, Message("user", (*images, body.prompt), at="prompt")))


def to_completion(body: OllamaGenerateRequest, notes: Notes) -> CompletionRequest:
    """Return the completions request that continues a text, or fills in the hole before a suffix.

    Raises BadRequestError.
    """
    for name in ("images", "think"):
        if getattr(body, name) not in ([], None):
            notes.left_out(name, is_peers=True)
    logprobs = body.top_logprobs if body.logprobs else None
    given = {"prompt": body.prompt, "suffix": body.suffix or None, "logprobs": logprobs}
    return _validated(body, given, CompletionRequest)


def _validated(body: GeneratingFields, given: Json, model: type[RequestT]) -> RequestT:
    """Return the translated request. given: the fields that chats and completions do not share."""
    options = {name: getattr(body.options, name) for name in body.options.model_fields_set}
    if (limit := options.get("num_predict")) is not None and limit <= 0:
        del options["num_predict"]
    if options.get("seed") == -1:
        del options["seed"]
    if "stop" in options:
        options["stop"] = list(options["stop"])
    # Without a limit, other than OpenAI's.
    temperature = options.pop("temperature", None)
    fields: Json = {"stream": body.stream, "draft": body.draft}
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif body.format:
        fields["guided_json"] = body.format
    fields |= {_RENAMED.get(name, name): value for name, value in options.items()}
    request = validate(fields | given, model)
    return request if temperature is None else request.model_copy(update={"temperature": temperature})
