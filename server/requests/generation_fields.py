"""The fields that /v1/chat/completions and /v1/completions share: limits, sampling, structure, drafts."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from reprise.engine.interface.request import DraftType
from reprise.server.errors import bad_field, shortened
from reprise.server.requests.fields import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    Count,
    Limit,
    LogitBias,
    Penalty,
    RequestModel,
    Stops,
    Temperature,
    TokenIds,
    TopP,
    field_error,
    no_effect,
    notes_in,
    read_by,
)
from reprise.server.requests.messages import parts_of
from reprise.server.requests.structured_output import StructuredFields


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
    """With wedlm_decoding: streaming, the uncertainty to add for each position ahead. null:
    --wedlm-pos-penalty-factor. Not in OpenAI's API."""
    wedlm_anchor: bool | None = None
    """With wedlm_decoding: streaming, whether every step also fills in the next token, as plain decoding
    would. null: --wedlm-anchor. Not in OpenAI's API."""


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


class ModelRequest(RequestModel):
    """The body that names a model."""

    model: str
    """The model's name, as GET /v1/models has it."""


class LoadRequest(ModelRequest):
    """The body of POST /v1/models/load."""

    keep_alive: KeepAlive = None


class PullRequest(RequestModel):
    """The body of POST /v1/models/pull."""

    model: str
    """The model's name on the hub, such as mlx-community/Qwen3-8B-4bit."""


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


class GenerationFields(StructuredFields, WindowFields):
    """The fields that chat and plain completions share. prompt_field: the name of the one with the prompt."""

    prompt_field: ClassVar[str]
    droppable = frozenset(
        {"draft", "prediction", "reasoning_effort", "response_format.json_schema.name", "return_progress"}
        | {"stream_options", "timings_per_token"}
    )

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
    null: --loop-guard-tokens, or what the model says, if the request sets no limit of tokens, else never. Not
    in OpenAI's API."""
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
    """Number of choices to generate for each prompt; at most --max-n."""
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
    def check_limits(self, info: ValidationInfo) -> "GenerationFields":
        """Refuse stream_options without a stream, and no prompt; note a min_tokens that is not reached."""
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
        """Whether nothing is generated: at most the prompt's log probabilities are asked for."""
        return self.requested_max_tokens == 0

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether the stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage
