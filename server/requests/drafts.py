"""The fields that control drafting: the source of drafts, and the client's prediction."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from reprise.engine.interface.request import DraftChoice, DraftType
from reprise.server.conversation.parts import parts_of
from reprise.server.validation.field_errors import field_error
from reprise.server.validation.fields import RequestModel
from reprise.server.validation.notes import notes_in

MAX_DRAFT_TOKENS = 255


class DraftFields(RequestModel):
    """How to draft for this request. Drafting changes only the speed, never the answer."""

    type: DraftType | None = Field(
        default=None, description="Source of drafts. null: the one of --draft-type."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_DRAFT_TOKENS,
        description="Maximum number of tokens in one draft, at most --num-draft-tokens. 0: no drafts. null: "
        "--num-draft-tokens.",
    )

    trace: bool = Field(
        default=False,
        description="Whether choices, also those of chunks, say in `draft_trace` what was drafted by what. "
        "Chats and completions show it; other endpoints take no notice.",
    )

    @property
    def choice(self) -> DraftChoice:
        """The request's choice of drafts, as the engine's DraftChoice."""
        return DraftChoice(self.type, self.max_tokens)


def _text(given: object, info: ValidationInfo) -> str:
    if not isinstance(given, str | list):
        raise field_error("invalid_type", "must be a string or an array of text parts")
    return "".join(map(str, parts_of(given, "prediction.content", notes_in(info.context))))


Content = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | list[dict[str, Any]])]


class Prediction(RequestModel):
    """The answer that the client expects, or a part of it. It is drafted for as long as it matches."""

    type: Literal["content"]
    content: Content = Field(description="The expected text, as a string or as text parts.")
