"""Fields common to chats and completions: structured output (OpenAI's, vLLM's), limits, sampling, drafts."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import to_json

from reprise.engine.interface.request import DraftType, Grammar
from reprise.server.errors import bad_field, shortened
from reprise.server.requests.fields import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    AcceptsPeerFields,
    Count,
    Limit,
    LogitBias,
    Penalty,
    RequestModel,
    Rules,
    Stops,
    Temperature,
    TokenIds,
    TopP,
    field_error,
    no_effect,
    notes_in,
    parse_finite,
    read_by,
    single,
    tagged_union,
)
from reprise.server.requests.json_schema import (
    MAX_SCHEMA_BYTES,
    check_regex,
    check_schema,
    check_size,
    relaxations,
    with_null_types,
)
from reprise.server.requests.lark import check_lark
from reprise.server.requests.messages import parts_of

MAX_N = 8
"""Maximum choices (n): as many as the batch has rows by default."""
MAX_CHOICES = 1000
MAX_CHOICES_CHARACTERS = 32_768
MAX_BAD_WORDS = 100
MAX_BAD_CHARACTERS = 1000

_MARKS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


def _schema(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise field_error("invalid_type", "must be a JSON schema, which is an object")
    check_size(given)
    return given


def _guided_json(given: object) -> dict[str, Any]:
    if isinstance(given, str):
        if len(given) > MAX_SCHEMA_BYTES:
            phrase = f"has {len(given)} characters; a schema may have at most {MAX_SCHEMA_BYTES} bytes"
            raise field_error("schema_too_large", phrase)
        try:
            given = parse_finite(given)
        except ValueError as fault:
            raise field_error("invalid_json", f"is not valid JSON: {fault}") from None
    schema = _schema(given)
    next(relaxations(schema))
    return schema


def _regex(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise field_error("invalid_type", "must be a regular expression, as a string that is not empty")
    check_regex(given)
    return given


def _choices(given: object, info: ValidationInfo) -> tuple[str, ...]:
    given = single(given, str, info)
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be an array of strings")
    if not 0 < len(given) <= MAX_CHOICES:
        phrase = f"has {len(given)} entries; between 1 and {MAX_CHOICES} are allowed"
        raise field_error("invalid_value", phrase)
    for index, choice in enumerate(given):
        if not isinstance(choice, str) or not choice:
            raise field_error("invalid_type", "must be a string that is not empty", f"[{index}]")
    if (num := sum(map(len, given))) > MAX_CHOICES_CHARACTERS:
        phrase = f"has {num} characters in all; at most {MAX_CHOICES_CHARACTERS} are allowed"
        raise field_error("invalid_value", phrase)
    return tuple(given)


def _bad_words(given: object, info: ValidationInfo) -> tuple[str, ...]:
    if given == []:
        return ()
    words = _choices(given, info)
    if len(words) > MAX_BAD_WORDS or sum(map(len, words)) > MAX_BAD_CHARACTERS:
        has = f"has {len(words)} strings of {sum(map(len, words))} characters in all"
        most = f"at most {MAX_BAD_WORDS} strings of {MAX_BAD_CHARACTERS} characters in all are allowed"
        raise field_error("invalid_value", f"{has}; {most}")
    return words


def _lark(given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise field_error("invalid_type", "must be a Lark grammar, as a string that is not empty")
    check_lark(given)
    return given


_Regex = Annotated[str, Field(min_length=1, json_schema_extra={"format": "rust-regex"})]
_Lark = Annotated[str, Field(min_length=1, json_schema_extra={"format": "lark"})]
_Word = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[_Word], Field(min_length=1, max_length=MAX_CHOICES)]
BadWords = Annotated[list[_Word], Field(max_length=MAX_BAD_WORDS)]


class TextFormat(RequestModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    """Any JSON object."""

    type: Literal["json_object"]


_Json = dict[str, Any]
_NullableSchema = Annotated[_Json, read_by(lambda given: with_null_types(_schema(given)), _Json)]


class JsonSchema(RequestModel):
    """A named JSON schema."""

    name: str | None = Field(None, max_length=64, pattern=r"^[a-zA-Z0-9_-]*$")
    """Name of the schema: letters, digits, underscores and dashes. Not shown to the model."""
    description: str | None = None
    """Accepted; not shown to the model."""
    schema_: _NullableSchema = Field(alias="schema")
    """The JSON schema that the answer must satisfy, enforced by llguidance. For its limits see guide.md."""
    strict: bool = False
    """Whether all of the schema must be enforced, or else refused. If false, what cannot be enforced is left
    out and named in the header x-reprise-relaxed, and the answer is checked: see guide.md."""

    @model_validator(mode="after")
    def check_limits(self) -> "JsonSchema":
        """Refuse a schema that is too large, or a strict one that cannot be enforced."""
        if self.strict:
            check_schema(self.schema_, ".schema")
        else:
            next(relaxations(self.schema_, ".schema"))
        return self


class JsonSchemaFormat(RequestModel):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


AnyFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat
_choose = tagged_union({"text": TextFormat, "json_object": JsonObjectFormat, "json_schema": JsonSchemaFormat})


def _format(given: object, info: ValidationInfo) -> Any:
    if isinstance(given, str) and not notes_in(info.context).refuses:
        given = {"type": given}
    return _choose(given)


ANY_TEXT: dict[str, Any] = {"anyOf": [{"type": "null"}, {"properties": {"type": {"const": "text"}}}]}
GUIDED: dict[str, dict[str, Any]] = {
    f"guided_{kind}": {"type": "null"} for kind in ("json", "regex", "choice", "grammar")
}
NO_WORDS: dict[str, Any] = {"enum": [None, []]}
_NEUTRAL = {"response_format": ANY_TEXT, **GUIDED, "bad_words": NO_WORDS}
"""JSON schemas of the values with which fields constrain nothing."""


def at_most_one(neutral: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a body that uses at most one field. neutral: schemas of unused fields."""
    others = ({name: schema for name, schema in neutral.items() if name != used} for used in neutral)
    return {"anyOf": [{"properties": properties} for properties in others]}


def json_grammar(schema: dict[str, Any]) -> Grammar:
    """Return the grammar of JSON that satisfies a schema."""
    return Grammar("json_schema", to_json(schema).decode())


def _escape(text: str) -> str:
    """Return a regular expression that matches only this text."""
    return _MARKS.sub(lambda mark: "\\" + mark[0], text)


class WindowFields(RequestModel):
    """How a WeDLM model decodes this request. Other models refuse these fields."""

    wedlm_decoding: Literal["off", "streaming"] | None = None
    """WeDLM models only. streaming: fill in several tokens at once; the answer may differ from that of plain
    decoding. null: --wedlm-decoding. Not in OpenAI's API."""
    wedlm_window_size: Count | None = None
    """With wedlm_decoding: streaming, the tokens to look ahead, at most --wedlm-window-size. null:
    --wedlm-window-size. Not in OpenAI's API."""
    wedlm_entropy_threshold: Annotated[float, Field(ge=0)] | Literal["none"] | None = None
    """With wedlm_decoding: streaming, fill in all tokens of which the model is less uncertain than this, in
    nats, but at least one; none: one at a time. null: --wedlm-entropy-threshold. Not in OpenAI's API."""
    wedlm_pos_penalty_factor: Annotated[float, Field(ge=0)] | None = None
    """With wedlm_decoding: streaming, the uncertainty to add for each position ahead. null: 0.01. Not in
    OpenAI's API."""
    wedlm_anchor: bool | None = None
    """With wedlm_decoding: streaming, whether every step also fills in the next token, as plain decoding
    would. null: false. Not in OpenAI's API."""


class DraftFields(RequestModel):
    """How to draft for this request. Drafting changes only the speed, never the answer."""

    type: DraftType | None = None
    """Source of drafts. null: the one of --draft-type."""
    max_tokens: int | None = Field(default=None, ge=0, le=255)
    """Maximum number of tokens in one draft, at most --num-draft-tokens. 0: no drafts. null:
    --num-draft-tokens."""

    trace: bool = False
    """Whether choices, also those of chunks, say in `draft_trace` what was drafted by what. Chats and
    completions show it; other endpoints take no notice."""


def _text(given: object, info: ValidationInfo) -> str:
    if not isinstance(given, str | list):
        raise field_error("invalid_type", "must be a string or an array of text parts")
    return "".join(map(str, parts_of(given, "prediction.content", notes_in(info.context))))


class Prediction(RequestModel):
    """The answer that the client expects, or a part of it. It is drafted for as long as it matches."""

    type: Literal["content"]
    content: Annotated[str, read_by(_text, str | list[dict[str, Any]])]
    """The expected text, as a string or as text parts."""


KeepAlive = Annotated[
    float | str | None,
    Field(
        description="With several models: seconds for which the model stays loaded without more requests, or "
        'a duration such as "5m"; below 0 for good. null: --idle-unload-s. Ollama\'s.'
    ),
]
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"-?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h))+")
_PART = re.compile(r"([0-9.]+)(ms|s|m|h)")
_NUMBER = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?")


def keep_alive_s(given: KeepAlive) -> float | None:
    """Return the seconds for which to keep a model loaded; below 0 for good. Raises BadRequestError."""
    if given is None or isinstance(given, int | float):
        return given
    if _NUMBER.fullmatch(given):
        return float(given)
    if _DURATION.fullmatch(given):
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(given))
        return -seconds if given.startswith("-") else seconds
    phrase = f"is '{shortened(given)}'; it must be seconds, or a duration such as \"5m\""
    raise bad_field("keep_alive", phrase)


class StreamOptions(RequestModel):
    """Options of a stream. Allowed only with stream: true."""

    include_usage: bool = False
    """Whether the stream ends with a chunk that has the token counts."""
    include_obfuscation: no_effect("chunks are never padded.") = None  # type: ignore[valid-type]


class GenerationFields(AcceptsPeerFields, WindowFields):
    """The fields that chat and plain completions share. prompt_field: the name of the one with the prompt.

    At most one of those that constrain the answer may be used in a request.
    """

    prompt_field: ClassVar[str]
    rules: ClassVar[Rules] = (at_most_one(_NEUTRAL),)
    droppable = frozenset(
        {"draft", "prediction", "reasoning_effort", "response_format.json_schema.name", "return_progress"}
        | {"stream_options", "timings_per_token"}
    )

    response_format: Annotated[AnyFormat, read_by(_format, AnyFormat)] | None = None
    """Format of the answer. text: any text; json_object: any JSON object; json_schema: JSON that satisfies
    the schema."""
    guided_json: Annotated[_Json, read_by(_guided_json, _Json)] | None = None
    """The JSON schema that the answer must satisfy, as an object or a string. Not in OpenAI's API."""
    guided_regex: Annotated[str, read_by(_regex, _Regex)] | None = None
    """A regular expression that the whole answer must match. Not in OpenAI's API."""
    guided_choice: Annotated[tuple[str, ...], read_by(_choices, Choices)] | None = None
    """The answer must be one of these strings. Not in OpenAI's API."""
    guided_grammar: Annotated[str, read_by(_lark, _Lark)] | None = None
    """A grammar that the answer must follow, in llguidance's variant of Lark. Not in OpenAI's API."""

    bad_words: Annotated[tuple[str, ...], read_by(_bad_words, BadWords)] = ()
    """Strings that the answer never contains, however it is split into tokens. Reasoning and tools' arguments
    may. Not in OpenAI's API."""

    model: str | None = None
    """The model's name or one of its aliases. null: the served model."""
    max_tokens: Limit | None = None
    """Maximum number of tokens to generate; at most what is left of the context. 0: none. null:
    --default-max-tokens if that is set, else all that is left of the context."""
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: int = Field(0, ge=-1, le=INT32_MAX)
    """Sample only from this many of the most likely tokens. 0, -1, or the vocabulary's size or more: no
    limit. Not in OpenAI's API."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Sample only from tokens that are at least this fraction as likely as the most likely one. 0: no limit.
    Not in OpenAI's API."""
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    """The same seed and request give the same answer. null: a random seed."""
    stop: Stops = ()
    """Strings that end the answer. The answer does not include them."""
    stop_token_ids: TokenIds = ()
    """Token ids that end the answer, beside the model's own. Not in OpenAI's API."""
    include_stop_str_in_output: bool = False
    """Whether the answer includes the stop string that ended it. Not in OpenAI's API."""
    min_tokens: int = Field(0, ge=0, le=INT32_MAX)
    """Minimum number of tokens to generate: before it, no token ends the answer and no stop string is looked
    for. A grammar may end the answer all the same. Not in OpenAI's API."""
    ignore_eos: bool = False
    """Whether the model's end-of-answer tokens are never chosen, unless a grammar allows no other. Not in
    OpenAI's API."""
    loop_guard_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """The answer ends if so many of its last tokens, at least 64, are one text eight times over. 0: never.
    null: 2048, or what the model's generation_config.json says, if the request sets no limit of tokens, else
    never. Not in OpenAI's API."""
    allowed_token_ids: TokenIds = ()
    """The token ids that may be chosen, unless a grammar allows none of them. Empty: all. Not in OpenAI's
    API."""
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, le=INT32_MAX, json_schema_extra={"not": {"const": 0}}
    )
    """Keep only this many of the prompt's last tokens. -1: as many as leave room for the answer, which is
    max_tokens or, without it, one token. null: all. Not in OpenAI's API."""
    stream: bool = False
    """Whether to send the answer in chunks, as server-sent events."""
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    """Whether each choice has the answer's token ids (token_ids, in a stream all of them with its last
    chunks), and a completion's choice or a chat's response the prompt's (prompt_token_ids). Not in OpenAI's
    API."""
    return_progress: bool = False
    """Whether a stream tells how far the prompt is, in chunks with prompt_progress. Not in OpenAI's API."""
    timings_per_token: bool = False
    """Whether each chunk of a stream has timings. Not in OpenAI's API."""
    n: int = Field(1, ge=1, le=INT32_MAX)
    """Number of choices to generate for each prompt; at most 8."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the logit of each token that the answer already contains."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's logit for each time that the answer contains it."""
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    """Above 1 makes tokens of the prompt and the answer less likely, below 1 more likely. 1: no effect. Not
    in OpenAI's API."""
    logit_bias: LogitBias = ()
    """Maps token ids, as decimal strings, to values that are added to their logits."""
    draft: DraftFields = DraftFields()
    """How to draft for this request. Not in OpenAI's API."""
    keep_alive: KeepAlive = None
    user: no_effect("has no effect.") = None  # type: ignore[valid-type]
    metadata: no_effect("has no effect.") = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def check_one_constraint(self) -> "GenerationFields":
        """Refuse a request with two constraints."""
        given = [name for name in _NEUTRAL if getattr(self, name) not in (None, ())]
        given = [name for name in given if not isinstance(getattr(self, name), TextFormat)]
        if len(given) > 1:
            phrase = f"and {given[1]} cannot be combined; send one of them"
            raise field_error("invalid_value", phrase, given[0])
        return self

    @model_validator(mode="after")
    def check_limits(self, info: ValidationInfo) -> "GenerationFields":
        """Refuse stream_options without a stream, and a missing prompt; note an unreachable min_tokens."""
        if self.stream_options is not None and not self.stream:
            phrase = "is allowed only with stream: true"
            raise field_error("invalid_value", phrase, "stream_options", leaves_out=True)
        if self.truncate_prompt_tokens == 0:
            phrase = "is 0, which leaves no prompt; -1 means no limit"
            raise field_error("invalid_value", phrase, "truncate_prompt_tokens")
        limit = self.requested_max_tokens
        if limit is not None and self.min_tokens > limit:
            phrase = f"is {self.min_tokens}, which is more than the {limit} tokens that are allowed at most"
            notes_in(info.context).understood("min_tokens", phrase)
        return self

    @property
    def shows_reasoning(self) -> bool:
        """Whether the response has the model's reasoning."""
        return True

    @property
    def requested_max_tokens(self) -> int | None:
        """The requested limit on the answer's tokens; None if there is none."""
        return self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """The number of most likely tokens to return at each position; None without log probabilities."""
        return None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether to return the log probabilities of the prompt's tokens too."""
        return False

    @property
    def is_scoring(self) -> bool:
        """Whether nothing is generated: at most the prompt's log probabilities are requested."""
        return self.requested_max_tokens == 0

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether the stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def relaxable_schema(self) -> dict[str, Any] | None:
        """The schema of the answer, if parts of it that cannot be enforced may be left out; else None."""
        chosen = self.response_format
        if isinstance(chosen, JsonSchemaFormat) and not chosen.json_schema.strict:
            return chosen.json_schema.schema_
        return self.guided_json

    @property
    def requested_grammar(self) -> tuple[Grammar, str] | None:
        """The grammar of the answer and the field that it comes from; None if any text is allowed."""
        match self.response_format:
            case JsonObjectFormat():
                return json_grammar({"type": "object"}), "response_format"
            case JsonSchemaFormat(json_schema=named):
                return json_grammar(named.schema_), "response_format.json_schema.schema"
        if self.guided_json is not None:
            return json_grammar(self.guided_json), "guided_json"
        if self.guided_regex is not None:
            return Grammar("regex", self.guided_regex), "guided_regex"
        if self.guided_choice is not None:
            return Grammar("regex", "|".join(map(_escape, self.guided_choice))), "guided_choice"
        if self.guided_grammar is not None:
            return Grammar("lark", self.guided_grammar), "guided_grammar"
        if self.bad_words:
            found = "|".join(map(_escape, self.bad_words)).replace("\n", "\\n")
            lark = f"start: TEXT\nTEXT: /(?s:.)*/ & ~(/(?s:.*)({found})(?s:.*)/)\n"
            return Grammar("lark", lark), "bad_words"
        return None
