"""What OpenAI's requests say of its prompt cache. Here every prompt is cached by what it holds."""

from typing import Literal

from pydantic import Field

from server.validation.fields import RequestModel


class PromptCacheOptions(RequestModel):
    """How prompts are cached."""

    mode: Literal["implicit", "explicit"] | None = Field(
        None, description="Accepted; prompts are cached by what they hold."
    )
    ttl: Literal["30m", "12h"] | None = Field(
        None, description="Accepted; what is used least recently goes first."
    )
