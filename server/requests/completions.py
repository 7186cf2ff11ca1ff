"""The body of /v1/completions: every field, its type and its limits."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from server.requests.generation_fields import GenerationFields
from server.validation.field_errors import field_error
from server.validation.fields import INT32_MAX, unsupported

MAX_PROMPTS = 64
Prompt = str | list[str] | list[int] | list[list[int]]


def _prompts(given: object) -> list[Any]:
    """The prompts of a request, one or several, each of them text or token ids."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be a string, an array of strings, or an array of token ids")
    if not given:
        raise field_error("invalid_value", "is empty; send at least one token")
    if isinstance(given[0], int):
        _check_ids(given, "")
        return [given]
    if len(given) > MAX_PROMPTS:
        raise field_error("invalid_value", f"has {len(given)} entries; at most {MAX_PROMPTS} are allowed")
    for index, prompt in enumerate(given):
        at = f"[{index}]"
        if not isinstance(prompt, type(given[0])) or not isinstance(prompt, str | list):
            raise field_error(
                "invalid_type", "must be a string like all others, or an array of token ids", at
            )
        if isinstance(prompt, list):
            _check_ids(prompt, at)
    return given


def _check_ids(ids: list[object], at: str) -> None:
    if not ids:
        raise field_error("invalid_value", "is empty; send at least one token", at)
    for index, token in enumerate(ids):
        if type(token) is not int:
            raise field_error("invalid_type", "must be a token id, a whole number", f"{at}[{index}]")


class CompletionRequest(GenerationFields):
    """The body of POST /v1/completions."""

    prompt_field = "prompt"

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts, json_schema_input_type=Prompt)] = (
        Field(description="What to continue: text or token ids, or several of either.")
    )
    best_of: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Only what n is: all answers are returned."
    )

    echo: bool = Field(False, description="Whether to say the prompt before the answer, with its logprobs.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="How many of the likeliest tokens to tell at each place, besides the token's own.",
    )
    suffix: unsupported("") = None  # type: ignore[valid-type]

    @property
    def num_top_logprobs(self) -> int | None:
        """See GenerationFields."""
        return self.logprobs

    @property
    def wants_prompt_logprobs(self) -> bool:
        """See GenerationFields."""
        return self.echo and self.logprobs is not None

    @model_validator(mode="after")
    def best_of_is_n(self) -> "CompletionRequest":
        """Refuse to generate answers that would be thrown away."""
        if self.best_of is not None and self.best_of != self.n:
            raise field_error("unsupported_parameter", "is supported only where it equals n", "best_of")
        return self
