"""What the bodies of /v1/chat/completions and /v1/completions have in common.

A field that OpenAI defines and that cannot matter on a server of one's own is accepted and does
nothing; one that would change the answer, and is not there yet, is refused by name.
"""

from typing import ClassVar

from pydantic import Field, model_validator

from server.requests.drafts import DraftFields
from server.requests.structured_output import StructuredFields
from server.validation.field_errors import field_error
from server.validation.fields import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    Count,
    LogitBias,
    Metadata,
    Penalty,
    RequestModel,
    Stops,
)


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
            raise field_error("invalid_value", "is allowed only with stream: true", "stream_options")
        return self

    @property
    def requested_max_tokens(self) -> int | None:
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
