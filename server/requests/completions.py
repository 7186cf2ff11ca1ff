"""The body of /v1/completions."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, model_validator

from reprise.server.requests.fields import (
    INT32_MAX,
    Rules,
    TokenId,
    as_integer,
    check_num,
    field_error,
    integers,
    neutral,
    read_by,
    single,
)
from reprise.server.requests.generation_fields import GenerationFields

MAX_PROMPTS = 64
_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_Several = Field(min_length=1, max_length=MAX_PROMPTS)
Prompt = _Text | _Ids | Annotated[list[_Text], _Several] | Annotated[list[_Ids], _Several]


def _prompts(given: object, info: ValidationInfo) -> list[Any]:
    """Return the prompts as a list; each is a string or a list of token ids."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, float | int):
        given = single(as_integer(given, info), int, info)
    if not isinstance(given, list):
        raise field_error("invalid_type", "must be a string, an array of strings, or an array of token ids")
    if not given or isinstance(given[0], int | float):
        return [_checked_ids(given, info)]
    check_num(given, MAX_PROMPTS)
    prompts: list[Any] = []
    for index, prompt in enumerate(given):
        at = f"[{index}]"
        if not isinstance(prompt, type(given[0])) or not isinstance(prompt, str | list):
            phrase = "must be a string or an array of token ids, the same kind for all prompts"
            raise field_error("invalid_type", phrase, at)
        prompts.append(_checked_ids(prompt, info, at) if isinstance(prompt, list) else prompt)
    return prompts


def _checked_ids(given: list[object], info: ValidationInfo, at: str = "") -> list[int]:
    if not given:
        raise field_error("invalid_value", "is empty; send at least one token", at)
    return integers(given, info, at)


_WITH_SUFFIX = {
    "prompt": {"anyOf": [{"type": "string"}, {"items": {"type": "string"}}]},
    "truncate_prompt_tokens": {"type": "null"},
}


class CompletionRequest(GenerationFields):
    """The body of POST /v1/completions."""

    prompt_field = "prompt"
    rules: ClassVar[Rules] = (
        {"anyOf": [neutral("echo", values=(None, False)), neutral("truncate_prompt_tokens")]},
        {"anyOf": [neutral("suffix", values=(None, "")), {"properties": _WITH_SUFFIX}]},
    )

    prompt: Annotated[list[str | list[int]], read_by(_prompts, Prompt)]
    """The prompt to continue, as a string or as token ids; or an array of such prompts."""
    best_of: int | None = Field(None, ge=0, le=INT32_MAX)
    """Must equal n: all choices are returned, none is selected."""

    echo: bool = False
    """Whether to return the prompt before the answer. With logprobs, the prompt's log probabilities are
    returned too, unless there is a suffix."""
    add_special_tokens: bool = True
    """Whether a prompt in text gets the special tokens that the model's prompts begin or end with. Not in
    OpenAI's API."""
    logprobs: int | None = Field(None, ge=0, le=20)
    """Number of most likely tokens to return at each position, besides the chosen token. null: no log
    probabilities."""
    suffix: str | None = None
    """The text after what is asked for: the answer is what is between it and the prompt, if the model has
    tokens for that. null or empty: nothing is known of what follows."""

    @property
    def num_top_logprobs(self) -> int | None:
        """The number of alternatives to return at each position; None without log probabilities."""
        return self.logprobs

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether to return the prompt's log probabilities. Not with a suffix, which changes them."""
        return self.echo and self.logprobs is not None and not self.suffix

    def with_stops(self, tokens: tuple[int, ...]) -> "CompletionRequest":
        """Return the request with further tokens that end the answer."""
        return self.model_copy(update={"stop_token_ids": (*self.stop_token_ids, *tokens)})

    @model_validator(mode="after")
    def check_combinations(self) -> "CompletionRequest":
        """Refuse fields that contradict each other."""
        if self.echo and self.truncate_prompt_tokens is not None:
            raise field_error("invalid_value", "cannot be combined with echo: true", "truncate_prompt_tokens")
        if self.suffix and not all(isinstance(prompt, str) for prompt in self.prompt):
            raise field_error("invalid_value", "needs a prompt in text", "suffix")
        if self.suffix and self.truncate_prompt_tokens is not None:
            raise field_error("invalid_value", "cannot be combined with truncate_prompt_tokens", "suffix")
        if self.best_of is not None and self.best_of != self.n:
            phrase = "is supported only if it equals n; leave it out"
            raise field_error("unsupported_parameter", phrase, "best_of", leaves_out=True)
        return self
