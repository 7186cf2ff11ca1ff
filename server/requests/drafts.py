"""What a request says about drafting: how, and what its client expects the answer to be."""

from typing import Literal

from pydantic import Field

from engine.request import DraftChoice, DraftType
from server.requests.messages import Content
from server.validation.fields import RequestModel

MAX_DRAFT_TOKENS = 255


class DraftFields(RequestModel):
    """How to draft for this request. Never changes the answer, only how fast it comes."""

    type: DraftType | None = Field(
        default=None, description="Where drafts come from; --draft-type if absent."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_DRAFT_TOKENS,
        description="Most tokens of one draft, at most --num-draft-tokens; 0 drafts nothing.",
    )

    @property
    def choice(self) -> DraftChoice:
        """The same for the engine."""
        return DraftChoice(self.type, self.max_tokens)


class Prediction(RequestModel):
    """The answer that the client expects, whole or in part; it is drafted while the answer keeps to it."""

    type: Literal["content"]
    content: Content = Field(description="Its text.")
