"""OpenAI's options for prompt caching. They have no effect: every prompt is cached by its content."""

from typing import Literal

from pydantic import Field

from server.validation.fields import RequestModel


class PromptCacheOptions(RequestModel):
    """OpenAI's options for prompt caching."""

    mode: Literal["implicit", "explicit"] | None = Field(
        None, description="Accepted; prompts are cached by their content."
    )
    ttl: Literal["30m", "12h"] | None = Field(
        None, description="Accepted; the least recently used prefixes are evicted first."
    )
